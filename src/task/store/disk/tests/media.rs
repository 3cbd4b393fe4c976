//! What stands for a disk: one that never waits, and one that loses power or room.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Bound;
use std::sync::{Arc, Mutex};

use redb::{BackendError, Builder, Database, DatabaseError, StorageBackend};

use super::super::file::Medium;
use super::super::lock;

/// What a disk writes as a whole or not at all.
const SECTOR: u64 = 512;
/// What the library reads and writes at a time, at least.
const PAGE: u64 = 4096;

/// Numbers that follow from a seed.
#[derive(Debug, Clone)]
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0xD1B5_4A32_D192_ED03)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

/// A disk in memory. A clone is the same disk.
#[derive(Clone, Default)]
pub(super) struct FakeDisk(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// What the process sees.
    seen: Vec<u8>,
    /// What survives for certain.
    synced: Vec<u8>,
    /// What was written since, in order: may survive, or not, or in part.
    unsynced: Vec<Write>,
    /// After so many more operations nothing works any more.
    cut_after: Option<u64>,
    /// So many bytes may be written to; more is no room.
    capacity: Option<u64>,
    /// The sectors that take room.
    taken: BTreeMap<u64, ()>,
    syncs: u64,
    /// After so many more syncs one fails, and what it was for may be there or not.
    failing_sync: Option<u64>,
    /// Nothing works any more when a sync has failed.
    stays_away: bool,
    /// How many pages were read and written.
    pages: u64,
    /// Who opens it keeps nothing of it in memory.
    has_no_cache: bool,
    /// It says that it has synced, and has not.
    lies: bool,
}

enum Write {
    Bytes(u64, Vec<u8>),
    Length(u64),
}

impl fmt::Debug for FakeDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FakeDisk")
    }
}

impl FakeDisk {
    /// The power goes after so many more operations.
    pub(super) fn cut_after(&self, operations: u64) {
        lock(&self.0).cut_after = Some(operations);
    }

    /// After so many more syncs one fails.
    pub(super) fn fail_sync_after(&self, syncs: u64) {
        lock(&self.0).failing_sync = Some(syncs);
    }

    /// With the sync that fails the power goes.
    pub(super) fn stay_away(&self) {
        lock(&self.0).stays_away = true;
    }

    /// It works again, with all that it had.
    pub(super) fn mend(&self) {
        lock(&self.0).cut_after = None;
    }

    /// Who opens it from now on reads everything from it.
    pub(super) fn without_cache(&self) {
        lock(&self.0).has_no_cache = true;
    }

    /// How many pages were read and written so far.
    pub(super) fn pages(&self) -> u64 {
        lock(&self.0).pages
    }

    /// How long the file is.
    pub(super) fn length(&self) -> usize {
        lock(&self.0).seen.len()
    }

    pub(super) fn is_cut(&self) -> bool {
        lock(&self.0).cut_after == Some(0)
    }

    /// From now on nothing is certain to survive.
    pub(super) fn lie(&self) {
        lock(&self.0).lies = true;
    }

    pub(super) fn syncs(&self) -> u64 {
        lock(&self.0).syncs
    }

    /// There is room for so much; `None` for no end of it.
    pub(super) fn limit(&self, capacity: Option<u64>) {
        lock(&self.0).capacity = capacity;
    }

    pub(super) fn taken(&self) -> u64 {
        lock(&self.0).taken.len() as u64 * SECTOR
    }

    /// Another disk with the same on it.
    pub(super) fn copy(&self) -> Self {
        let before = lock(&self.0);
        let state = State { seen: before.seen.clone(), synced: before.synced.clone(), ..State::default() };
        Self(Arc::new(Mutex::new(state)))
    }

    /// Where these bytes are.
    pub(super) fn find(&self, bytes: &[u8]) -> usize {
        lock(&self.0).seen.windows(bytes.len()).position(|window| window == bytes).unwrap()
    }

    /// It forgets one bit.
    pub(super) fn flip(&self, at: usize, bit: u32) {
        lock(&self.0).seen[at] ^= 1 << bit;
    }

    /// The disk after a cut that loses all that was not synced.
    pub(super) fn after_a_cut_that_loses_all(&self) -> Self {
        let image = lock(&self.0).synced.clone();
        let state = State { seen: image.clone(), synced: image, ..State::default() };
        Self(Arc::new(Mutex::new(state)))
    }

    /// The disk after the cut: of what was not synced any part of any subset is there.
    pub(super) fn after_the_cut(&self, dice: &mut Dice) -> Self {
        let before = lock(&self.0);
        let mut image = before.synced.clone();
        // One in four cuts loses all of it or nothing, the others anything; half of them tear.
        let mood = dice.below(8);
        for write in &before.unsynced {
            let is_whole = match mood {
                0 => true,
                1 => false,
                _ => dice.below(2) == 0,
            };
            match write {
                Write::Length(length) if is_whole => image.resize(usize::try_from(*length).unwrap(), 0),
                Write::Length(_) => {}
                Write::Bytes(at, bytes) if is_whole => put(&mut image, *at, bytes),
                Write::Bytes(at, bytes) if mood > 3 => {
                    // Torn: each sector by itself.
                    let mut from = 0;
                    while from < bytes.len() {
                        let end = (*at + from as u64) / SECTOR * SECTOR + SECTOR - *at;
                        let end = usize::try_from(end).unwrap().min(bytes.len());
                        if dice.below(2) == 0 {
                            put(&mut image, *at + from as u64, &bytes[from..end]);
                        }
                        from = end;
                    }
                }
                Write::Bytes(..) => {}
            }
        }
        let state = State { seen: image.clone(), synced: image, ..State::default() };
        Self(Arc::new(Mutex::new(state)))
    }
}

/// A file that is written beyond its end grows.
fn put(image: &mut Vec<u8>, at: u64, bytes: &[u8]) {
    let at = usize::try_from(at).unwrap();
    if image.len() < at + bytes.len() {
        image.resize(at + bytes.len(), 0);
    }
    image[at..at + bytes.len()].copy_from_slice(bytes);
}

impl State {
    fn step(&mut self) -> std::io::Result<()> {
        match &mut self.cut_after {
            Some(0) => Err(std::io::Error::other("no power")),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }
}

impl StorageBackend for FakeDisk {
    fn len(&self) -> std::io::Result<u64> {
        let mut state = lock(&self.0);
        state.step()?;
        Ok(state.seen.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> std::io::Result<()> {
        let mut state = lock(&self.0);
        state.step()?;
        state.pages += (out.len() as u64).div_ceil(PAGE);
        let at = usize::try_from(offset).unwrap();
        let bytes = state.seen.get(at..at + out.len()).ok_or(std::io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(bytes);
        Ok(())
    }

    fn set_len(&self, len: u64) -> std::io::Result<()> {
        let mut state = lock(&self.0);
        state.step()?;
        state.seen.resize(usize::try_from(len).unwrap(), 0);
        state.taken.split_off(&len.div_ceil(SECTOR));
        state.unsynced.push(Write::Length(len));
        Ok(())
    }

    fn sync_data(&self) -> std::io::Result<()> {
        let mut state = lock(&self.0);
        state.step()?;
        state.syncs += 1;
        match state.failing_sync {
            Some(0) => {
                state.failing_sync = None;
                state.cut_after = state.stays_away.then_some(0);
                return Err(std::io::Error::other("not synced"));
            }
            Some(left) => state.failing_sync = Some(left - 1),
            None => {}
        }
        if state.lies {
            return Ok(());
        }
        let State { synced, unsynced, .. } = &mut *state;
        for write in unsynced.drain(..) {
            match write {
                Write::Bytes(at, bytes) => put(synced, at, &bytes),
                Write::Length(length) => synced.resize(usize::try_from(length).unwrap(), 0),
            }
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> std::io::Result<()> {
        let mut state = lock(&self.0);
        state.step()?;
        state.pages += (data.len() as u64).div_ceil(PAGE);
        if let Some(capacity) = state.capacity {
            let sectors = offset / SECTOR..(offset + data.len() as u64).div_ceil(SECTOR);
            let new = sectors.filter(|sector| !state.taken.contains_key(sector)).count() as u64;
            if (state.taken.len() as u64 + new) * SECTOR > capacity && new > 0 {
                return Err(std::io::ErrorKind::StorageFull.into());
            }
        }
        for sector in offset / SECTOR..(offset + data.len() as u64).div_ceil(SECTOR) {
            state.taken.insert(sector, ());
        }
        put(&mut state.seen, offset, data);
        state.unsynced.push(Write::Bytes(offset, data.to_vec()));
        Ok(())
    }

    fn try_lock_range(&self, _: Bound<u64>, _: Bound<u64>) -> Result<bool, BackendError> {
        Ok(true)
    }

    fn unlock_range(&self, _: Bound<u64>, _: Bound<u64>) -> Result<(), BackendError> {
        Ok(())
    }
}

impl Medium for FakeDisk {
    fn open(&self, builder: &Builder) -> Result<Database, DatabaseError> {
        if lock(&self.0).has_no_cache {
            return Builder::new().set_cache_size(0).create_with_backend(self.clone());
        }
        builder.create_with_backend(self.clone())
    }

    fn room(&self) -> Option<u64> {
        let state = lock(&self.0);
        state.capacity.map(|capacity| capacity.saturating_sub(state.taken.len() as u64 * SECTOR))
    }

    fn size(&self) -> Option<u64> {
        Some(lock(&self.0).seen.len() as u64)
    }
}
