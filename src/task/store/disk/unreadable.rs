//! Records that can't be read, as after a fault of the disk: the others don't stop for one, and it goes when it expires.

use redb::ReadableTable;

use super::halt::Halt;
use super::tables::{Row, Tables};

impl Tables<'_> {
    /// Removes an expired record that can't be read, and what is known of it by other tables; gives its places back. What
    /// names it by its owner stays, and leads nowhere.
    pub(super) fn remove_unreadable(&mut self, row: Row, expiry: u64) -> Result<(), Halt> {
        let bytes = self.remove_outcome(row)?;
        let was_held = self.let_go(row)?;
        if let Some(tenant) = self.tenant_of(row, expiry)? {
            let before = self.counters(&tenant)?;
            let mut counters = before;
            let usage = &mut counters.usage;
            if self.queues.remove((&tenant, row))?.is_some() {
                usage.queued = usage.queued.saturating_sub(1);
            } else if was_held {
                usage.running = usage.running.saturating_sub(1);
            }
            usage.kept = usage.kept.saturating_sub(1);
            usage.kept_bytes = usage.kept_bytes.saturating_sub(bytes);
            self.tenant_expiries.remove((&tenant, expiry, row))?;
            self.promote(&tenant, &mut counters)?;
            self.count(&tenant, before, counters)?;
        }
        self.expiries.remove((expiry, row))?;
        self.records.remove(row)?;
        self.handed_out.remove(row)?;
        self.drafts.remove(row)?;
        self.trails.remove(row)?;
        Ok(())
    }

    /// Nobody holds it any more; says whether anybody did. A step for each holder, of whom there are few.
    pub(super) fn let_go(&mut self, row: Row) -> Result<bool, Halt> {
        let mut last: Option<String> = None;
        loop {
            let next = match &last {
                None => self.held.first()?,
                // Nobody has the last row.
                Some(last) => self.held.range((last.as_str(), Row::MAX)..)?.next().transpose()?,
            };
            let Some(holder) = next.map(|(key, _)| key.value().0.to_owned()) else { return Ok(false) };
            if self.held.remove((holder.as_str(), row))?.is_some() {
                return Ok(true);
            }
            last = Some(holder);
        }
    }

    /// Whose record it is: a step for each tenant.
    fn tenant_of(&self, row: Row, expiry: u64) -> Result<Option<[u8; 16]>, Halt> {
        for entry in self.tenants.iter()? {
            let tenant = *entry?.0.value();
            if self.tenant_expiries.get((&tenant, expiry, row))?.is_some() {
                return Ok(Some(tenant));
            }
        }
        Ok(None)
    }
}
