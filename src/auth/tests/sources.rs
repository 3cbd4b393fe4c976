//! Keys over time. A file stands for every place: what differs is only how the bytes come.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::advance;

use super::signing::Key;
use crate::auth::keys::source::Keys;
use crate::auth::keys::{KeySet, Source, Unusable};
use crate::jobs::Jobs;
use crate::oauth::fetch::Fetcher;

struct Stand {
    keys: Arc<Keys>,
    path: PathBuf,
    _folder: TempDir,
    jobs: Jobs,
}

fn published(keys: &[&Key]) -> Value {
    json!({"keys": keys.iter().map(|key| key.jwk()).collect::<Vec<_>>()})
}

impl Stand {
    fn start(keys: &[&Key]) -> Self {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("keys.json");
        std::fs::write(&path, published(keys).to_string()).unwrap();
        let source = Source::File(path.clone());
        let keys = Arc::new(Keys::new("https://i".into(), source, Fetcher::new()).unwrap());
        let jobs = Jobs::default();
        jobs.spawn("keys", Arc::clone(&keys).run(jobs.stopping().clone()));
        Self { keys, path, _folder: folder, jobs }
    }

    fn publish(&self, text: &str) {
        std::fs::write(&self.path, text).unwrap();
    }

    fn has(&self, keys: &[&Key]) -> bool {
        *self.keys.current().unwrap() == KeySet::of(&published(keys)).unwrap()
    }
}

#[tokio::test(start_paused = true)]
async fn unknown_keys_have_the_set_read_again_but_not_too_often() {
    let (one, two, three) = (Key::new("one", "EdDSA"), Key::new("two", "EdDSA"), Key::new("three", "EdDSA"));
    let stand = Stand::start(&[&one]);
    assert!(stand.has(&[&one]));
    let generation = stand.keys.generation();
    stand.publish(&published(&[&one, &two]).to_string());
    assert!(stand.keys.refetched().await && stand.has(&[&one, &two]));
    assert_eq!(stand.keys.generation(), generation + 1);
    // Three more at once, as when somebody invents names.
    for _ in 0..3 {
        assert!(stand.keys.refetched().await);
    }
    stand.publish(&published(&[&three]).to_string());
    assert!(!stand.keys.refetched().await);
    advance(Duration::from_secs(29)).await;
    assert!(!stand.keys.refetched().await && stand.has(&[&one, &two]));
    advance(Duration::from_secs(1)).await;
    assert!(stand.keys.refetched().await && stand.has(&[&three]));
    assert!(!stand.keys.refetched().await, "one for each pause");
    assert_eq!(stand.keys.generation(), generation + 2);
    // The same again is no change: what is remembered stays good.
    advance(Duration::from_secs(30)).await;
    assert!(stand.keys.refetched().await);
    assert_eq!(stand.keys.generation(), generation + 2);
    // However long nobody asks, no more than four come together.
    advance(Duration::from_secs(100_000)).await;
    for _ in 0..4 {
        assert!(stand.keys.refetched().await);
    }
    assert!(!stand.keys.refetched().await);
    assert_eq!(stand.jobs.stop(Duration::from_secs(1)).await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_broken_or_empty_set_replaces_nothing() {
    let one = Key::new("one", "EdDSA");
    let stand = Stand::start(&[&one]);
    for broken in ["", "{", "{\"keys\":[]}", "{\"keys\":[{\"kty\":\"oct\",\"k\":\"AAAA\"}]}", "[]"] {
        stand.publish(broken);
        assert!(stand.keys.refetched().await);
        assert!(stand.has(&[&one]) && stand.keys.generation() == 0, "{broken}");
        advance(Duration::from_secs(30)).await;
    }
    std::fs::remove_file(&stand.path).unwrap();
    assert!(stand.keys.refetched().await && stand.has(&[&one]));
}

#[tokio::test(start_paused = true)]
async fn callers_who_ask_at_the_same_time_share_an_answer() {
    let (one, two) = (Key::new("one", "EdDSA"), Key::new("two", "EdDSA"));
    let stand = Stand::start(&[&one]);
    stand.publish(&published(&[&two]).to_string());
    let asked = futures_util::future::join_all((0..50).map(|_| stand.keys.refetched())).await;
    assert_eq!(asked, vec![true; 50]);
    assert!(stand.has(&[&two]) && stand.keys.generation() == 1);
}

#[tokio::test]
async fn a_file_without_keys_is_told_at_start() {
    let start = |source| Keys::new("https://i".into(), source, Fetcher::new()).map(drop);
    assert!(matches!(start(Source::File("/nowhere".into())), Err(Unusable::File(_))));
    // Others are asked when they are needed.
    assert!(start(Source::Discovery).is_ok() && start(Source::Url("https://i/k".parse().unwrap())).is_ok());
    let shown = format!("{:?}", Source::Url("https://i/k?token=hush".parse().unwrap()));
    assert!(!shown.contains("hush"), "{shown}");
}
