//! What operations cost the disk: pages that are read and written, where nothing is cached.

use super::*;
use crate::task::store::contract::costs::{Costs, assert_grown_by_at_most, costs, fill};

async fn measured(count: usize) -> Costs {
    let disk = FakeDisk::default();
    let open = |disk: FakeDisk| {
        let file = File::on("folder".into(), Box::new(disk)).unwrap();
        DiskStore::over(file, Path::new("folder"), Clock::system()).unwrap()
    };
    let running = fill(&open(disk.clone()), count).await;
    disk.without_cache();
    let store = open(disk.clone());
    costs(&store, &running, &async || disk.pages()).await
}

/// The trees are one level deeper. To walk through the smallest of them alone is eighty pages.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn costs_do_not_grow_with_the_number_of_tasks() {
    assert_grown_by_at_most(&measured(1000).await, &measured(20_000).await, 24);
}
