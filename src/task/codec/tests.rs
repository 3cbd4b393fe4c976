//! Every record comes back as it was, and what later versions write can be read.

use proptest::prelude::*;

use super::*;

fn text() -> impl Strategy<Value = Box<str>> {
    any::<String>().prop_map(Into::into)
}

fn progress() -> impl Strategy<Value = Progress> {
    prop_oneof![
        Just(Progress::Waiting),
        any::<u64>().prop_map(Progress::Claimed),
        text().prop_map(|text| Progress::Answered(Answer::Result(text))),
        text().prop_map(|text| Progress::Answered(Answer::Error(text))),
    ]
}

fn question() -> impl Strategy<Value = Question> {
    let id = prop_oneof![
        any::<i64>().prop_map(|id| id.to_string()),
        any::<String>().prop_map(|id| serde_json::json!(id).to_string())
    ];
    (any::<u32>(), id, text(), proptest::option::of(text()), any::<u64>(), progress()).prop_filter_map(
        "an id is short",
        |(number, id, method, params, asked_at, progress)| {
            let (upstream_id, asked_at) = (Id::from_json(&id).ok()?, Timestamp::from_millis(asked_at));
            Some(Question { number, upstream_id, method, params, asked_at, progress })
        },
    )
}

fn state() -> impl Strategy<Value = State> {
    let asked = (proptest::collection::vec(question(), 0..4), any::<u32>());
    prop_oneof![
        Just(State::Queued),
        asked.prop_map(|(questions, next_number)| State::Held(Asked { questions, next_number })),
        any::<bool>().prop_map(|is_error| State::Ended(Ending::Returned { is_error })),
        Just(State::Ended(Ending::Errored)),
        Just(State::Ended(Ending::Cancelled)),
    ]
}

fn owner() -> impl Strategy<Value = Owner> {
    (proptest::array::uniform5(any::<String>()), any::<[u8; 16]>()).prop_map(|(names, principal)| {
        let [tenant, issuer, subject, client, route] = names.map(Arc::from);
        Owner { tenant, issuer, subject, client, principal, route }
    })
}

fn task() -> impl Strategy<Value = Task> {
    let texts = (any::<String>(), proptest::option::of(text()), proptest::option::of(text()), any::<String>());
    (owner(), texts, any::<u128>(), any::<[u64; 5]>(), state(), any::<[u64; 2]>()).prop_map(
        |(owner, (tool, progress_token, status_message, holder), session, times, state, [epoch, version])| {
            let [created_at, updated_at, deadline, ttl, poll_interval] = times;
            Task {
                id: TaskId::random(),
                owner: Arc::new(owner),
                tool: tool.into(),
                session,
                progress_token,
                created_at: Timestamp::from_millis(created_at),
                updated_at: Timestamp::from_millis(updated_at),
                ttl: Duration::from_millis(ttl),
                poll_interval: Duration::from_millis(poll_interval),
                deadline: Timestamp::from_millis(deadline),
                state,
                status_message,
                holder: Holder::from_text(&holder),
                epoch,
                version,
            }
        },
    )
}

proptest! {
    #[test]
    fn a_record_comes_back_as_it_was(task in task()) {
        prop_assert_eq!(format!("{:?}", decode(encode(&task).as_bytes()).unwrap()), format!("{task:?}"));
    }

    #[test]
    fn anything_else_is_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(decode(&bytes).is_err());
    }
}

#[test]
fn an_outcome_comes_back_as_it_was() {
    for whole in [Outcome::Result("{\"a\": 1.10}".into()), Outcome::Error("{}".into())] {
        let (Outcome::Result(text) | Outcome::Error(text)) = &whole;
        assert_eq!(outcome(kind_of(&whole), text.as_bytes()).unwrap(), whole);
    }
    assert!(outcome(b'x', b"{}").is_err());
    assert!(outcome(b'r', &[0xff]).is_err());
}

/// A record as the first version wrote it, with a member that it did not know.
#[test]
fn a_written_record_stays_readable() {
    let text = r#"{"id":"6f1c8d0e-3b0a-4f6e-9c55-0d6a6a2f7d11","tenant":"acme","issuer":"","subject":"alice","client":"","principal":[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15],"route":"reports","tool":"report","session":[1,2],"created_at":1000,"updated_at":2000,"ttl":3000,"poll_interval":4000,"deadline":5000,"state":{"held":{"questions":[{"number":1,"upstream_id":"\"q\"","method":"elicitation/create","asked_at":7,"progress":{"claimed":3}}],"next_number":2}},"holder":"a.1","epoch":1,"version":9,"later":{}}"#;
    let task = decode(text.as_bytes()).unwrap();
    assert_eq!((task.session, task.version, task.state.questions().len()), ((1 << 64) | 2, 9, 1));
    assert_eq!(encode(&task), text.replace(r#","later":{}"#, ""));
}
