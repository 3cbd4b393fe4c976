//! The redis store under the contract, and what only a server can do to it: clocks that differ, records that it drops,
//! and its going away.

use super::*;
use crate::hub::server;
use crate::task::store::contract::each_contract_test;

async fn store() -> Option<Arc<dyn Store>> {
    let (hub, jobs) = server::shared()?;
    let store = RedisStore::start(hub.clone(), Clock::system(), &jobs);
    assert!(hub.arrives(server::PATIENCE).await);
    Some(Arc::new(store))
}

each_contract_test!({
    let Some(store) = store().await else { return };
    store
});
