//! What operations cost: entries that are looked at, one by one.

use super::*;
use crate::task::store::contract::costs::{Costs, costs, fill};

/// All that the store consists of.
const SOURCES: [&str; 3] = [include_str!("../../memory.rs"), include_str!("../book.rs"), include_str!("../holders.rs")];

async fn measured(count: usize) -> Costs {
    let store = MemoryStore::shared(Clock::system());
    let running = fill(&store, count).await;
    costs(&store, &running, &async || walks::counted::steps()).await
}

#[tokio::test]
async fn costs_do_not_grow_with_the_number_of_tasks() {
    assert_eq!(measured(100).await, measured(5000).await);
}

/// What is counted is all that there is to count: no walk is hidden from it.
#[test]
fn every_walk_is_counted() {
    let walks = [".iter()", ".keys()", ".values()", ".range(", ".drain(", ".retain(", ".into_iter()", "for ", "while "];
    // What may be there or not, and loops that count their steps.
    let loops = ["while let Some((owner, id)) = book.next_in_line()", "while page.len()", "while tasks.len()"];
    let others = [&["holders.iter()", ".into_iter().flatten()", "impl"], &loops[..]].concat();
    for line in SOURCES.iter().flat_map(|source| source.lines()).map(str::trim) {
        let is_walk = walks.iter().any(|walk| line.contains(walk)) && !line.starts_with("//");
        let is_known = line.contains("walk(") || others.iter().any(|other| line.contains(other));
        assert!(!is_walk || is_known, "not counted: {line}");
    }
}
