//! Callers who show tokens: what is taken, what is refused and in which words, in both eras.

use crate::support::{Issuer, Key, Value, json};

#[tokio::test]
async fn an_issuer_publishes_what_it_signs_with() {
    let issuer = Issuer::start().await;
    let first = issuer.token("https://a.example/mcp", json!({"sub": "bob", "client_id": Value::Null}));
    issuer.rotate(Key::new("two", "EdDSA"));
    let second = issuer.token("https://a.example/mcp", json!({}));
    assert_eq!(first.split('.').count(), 3);
    assert_ne!(first.split('.').next(), second.split('.').next());
    assert!(issuer.asked("/keys").is_empty());
}
