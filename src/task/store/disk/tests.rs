use super::*;
use crate::task::store::contract::each_contract_test;

/// A store whose folder is removed at once: the open file stays until the store is gone.
fn fresh() -> Arc<dyn Store> {
    let folder = tempfile::tempdir().unwrap();
    Arc::new(DiskStore::open(folder.path(), Clock::system()).unwrap())
}

each_contract_test!(fresh());
