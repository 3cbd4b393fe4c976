//! Outcomes of every size, to be handed out.

use super::*;
use crate::task::outline::Part;
use crate::task::store::Kept;

/// The text of an outcome as a reader gets it.
async fn read(kept: Kept) -> Outcome {
    let mut large = match kept {
        Kept::Whole(outcome) => return outcome,
        Kept::Large(large) => large,
    };
    let mut text = Vec::new();
    while let Some(piece) = large.pieces.next().await.unwrap() {
        assert!(piece.len() <= 64 << 10);
        text.extend_from_slice(&piece);
    }
    assert!(large.pieces.next().await.unwrap().is_none());
    let parts = large.outline.fill(large.outline.text().as_bytes()).unwrap();
    let bytes = |part: Part<'_>| match part {
        Part::Text(text) => text.to_vec(),
        Part::Value(place) => text[usize::try_from(place.start).unwrap()..usize::try_from(place.end).unwrap()].to_vec(),
    };
    let filled: Vec<u8> = parts.into_iter().flat_map(bytes).collect();
    assert!(filled == text && large.outline.text().len() < 1000);
    Outcome::Result(String::from_utf8(text).unwrap().into())
}

pub(crate) async fn hands_out_an_outcome_as_it_is_kept(store: Arc<dyn Store>) {
    let object = |length: usize| format!("{{\"content\":[\"{}\"], \"isError\":false}}", "\u{e9}".repeat(length / 2));
    let results =
        [10, 65_000, 65_300, 65_536, 70_000, 200_000, 3 << 20].map(|length| Outcome::Result(object(length).into()));
    let small = format!("{{{}}}", (0..9000).map(|n| format!("\"{n}\":1")).collect::<Vec<_>>().join(","));
    let others = [
        Outcome::Result(small.into()),
        Outcome::Result("x".repeat(100_000).into()),
        Outcome::Error(object(100_000).into()),
    ];
    for outcome in results.into_iter().chain(others) {
        let made = store.create(task(&alice()), None, &AMPLE).await.unwrap();
        assert!(store.kept(&alice(), made.id).await.unwrap().is_none());
        store.replace(ended(&made), Some(outcome.clone())).await.unwrap();
        let kept = store.kept(&alice(), made.id).await.unwrap().unwrap();
        assert!(read(kept).await == outcome, "{} bytes", outcome.bytes());
        assert!(store.kept(&owner("acme", "bob"), made.id).await.unwrap().is_none());
    }
}
