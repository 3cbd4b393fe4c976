//! The life of a task.

use crate::support::{Gateway, json, text_of};

#[tokio::test]
async fn a_task_works_until_its_call_is_over() {
    let gateway = Gateway::start().await;
    let client = gateway.open().await;
    let id = client.start("hold", json!({})).await;
    gateway.started("hold", 1).await;
    assert_eq!(client.task(&id).await["status"], "working");
    gateway.upstream.release();
    assert_eq!(text_of(&client.outcome(&id).await), "held to the end");
    assert_eq!(client.task(&id).await["status"], "completed");
}
