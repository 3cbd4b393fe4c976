//! Looks for paths that go round. The checker does not: it takes a circle for two paths that meet.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use stateright::Model;

use super::world::{Setup, World};

/// Walks every path to its end; gives the number of states.
#[track_caller]
pub(crate) fn all_end(setup: &Setup) -> usize {
    // Whether every path from there has been walked.
    let mut walked: HashMap<u64, bool> = HashMap::new();
    let mut path: Vec<(u64, Vec<World>)> = Vec::new();
    for first in setup.init_states() {
        enter(setup, &first, &mut walked, &mut path);
        while let Some((print, ahead)) = path.last_mut() {
            let Some(next) = ahead.pop() else {
                walked.insert(*print, true);
                path.pop();
                continue;
            };
            match walked.get(&print_of(&next)) {
                Some(true) => {}
                Some(false) => panic!("a path goes round: {next:#?}"),
                None => enter(setup, &next, &mut walked, &mut path),
            }
        }
    }
    walked.len()
}

fn enter(setup: &Setup, world: &World, walked: &mut HashMap<u64, bool>, path: &mut Vec<(u64, Vec<World>)>) {
    let print = print_of(world);
    walked.insert(print, false);
    path.push((print, setup.next_states(world)));
}

fn print_of(world: &World) -> u64 {
    let mut hasher = DefaultHasher::new();
    world.hash(&mut hasher);
    hasher.finish()
}
