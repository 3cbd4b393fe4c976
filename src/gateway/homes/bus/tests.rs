//! Messages as they are written: replicas of two versions talk to each other during a deploy.

use super::*;

fn owner() -> Owner {
    let text = |text: &str| text.into();
    Owner {
        tenant: text("acme"),
        issuer: text("https://login.example.com"),
        subject: text("ann"),
        client: text("agent"),
        principal: [7; 16],
        route: text("main"),
    }
}

/// Changes here are changes of what is spoken between replicas.
#[test]
fn messages_are_written_as_other_versions_read_them() {
    let (me, other) = (Holder::from_text("me"), Holder::from_text("other"));
    let id = TaskId::parse("0b9bfa3c-31d1-4c4e-9a0c-0d4f9d0c2b11").unwrap();
    let event = Bytes::from_static(b"data: {}\n\n");
    let session = "0000000000000000000000000000002a";
    let written = [
        (Message::Alive { from: "me".into() }, r#"{"kind":"alive","from":"me"}"#.to_owned()),
        (Message::Leaving { from: "me".into() }, r#"{"kind":"leaving","from":"me"}"#.to_owned()),
        (Message::Closing { from: "me".into() }, r#"{"kind":"closing","from":"me"}"#.to_owned()),
        (
            Message::Parted { to: "other".into(), from: "me".into() },
            r#"{"kind":"parted","to":"other","from":"me"}"#.to_owned(),
        ),
        (Message::ended(42), format!(r#"{{"kind":"ended","session":"{session}"}}"#)),
        (Message::seen(42), format!(r#"{{"kind":"seen","session":"{session}"}}"#)),
        (Message::mine(id, &other, &me), format!(r#"{{"kind":"mine","task":"{id}","to":"other","from":"me"}}"#)),
        (
            Message::NotMine { task: id.to_string(), to: "other".into(), from: "me".into() },
            format!(r#"{{"kind":"not_mine","task":"{id}","to":"other","from":"me"}}"#),
        ),
        (
            Message::event((id, 42), &other, &me, &event),
            format!(
                r#"{{"kind":"event","task":"{id}","session":"{session}","to":"other","from":"me","event":"data: {{}}\n\n"}}"#
            ),
        ),
        (
            Message::Void { task: id.to_string(), session: session.into(), number: 3, stream: 9_007_199_254_740_991 },
            format!(r#"{{"kind":"void","task":"{id}","session":"{session}","number":3,"stream":9007199254740991}}"#),
        ),
    ];
    for (message, text) in written {
        assert_eq!(serde_json::to_string(&message).unwrap(), text);
        assert_eq!(serde_json::from_str::<Message>(&text).unwrap(), message);
    }
}

#[test]
fn an_owner_is_the_same_on_the_other_side() {
    let offer = Message::Offer { task: "t".into(), session: "s".into(), owner: Box::new(Whose::from(&owner())) };
    let text = serde_json::to_vec(&offer).unwrap();
    let Message::Offer { owner: read, .. } = serde_json::from_slice(&text).unwrap() else { panic!("{offer:?}") };
    assert_eq!(Owner::from(*read), owner());
}

/// A newer one says more, or says what this one does not know: the one is left out, the other is no message.
#[test]
fn what_a_newer_version_says_does_no_harm() {
    let more = r#"{"kind":"alive","from":"me","address":"10.0.0.5:7070"}"#;
    assert_eq!(serde_json::from_str::<Message>(more).unwrap(), Message::Alive { from: "me".into() });
    assert!(serde_json::from_str::<Message>(r#"{"kind":"greeting","from":"me"}"#).is_err());
    assert!(serde_json::from_str::<Message>(r#"{"kind":"ended"}"#).is_err());
}

#[test]
fn the_numbers_of_sessions_keep_their_value() {
    for number in [0, 1, 42, SessionNumber::MAX] {
        assert_eq!(number_of(&number_text(number)), Some(number));
        assert_eq!(number_text(number).len(), 32);
    }
    for bad in ["", "x", "-1", "100000000000000000000000000000000"] {
        assert_eq!(number_of(bad), None);
    }
}

#[tokio::test]
async fn when_nobody_can_tell_anything_any_more_there_is_silence() {
    let (sender, mut incoming) = mpsc::channel(1);
    sender.send(Bytes::from_static(b"1")).await.unwrap();
    drop(sender);
    assert_eq!(heard(&mut incoming).await, "1");
    // No busy loop.
    assert!(futures_util::FutureExt::now_or_never(heard(&mut incoming)).is_none());
}
