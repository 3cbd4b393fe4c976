//! Every event in every state.

use super::*;

const NOW: Timestamp = Timestamp::from_millis(1000);

fn question(number: u32, upstream_id: u64, progress: Progress) -> Question {
    Question {
        number,
        upstream_id: Id::number(upstream_id),
        method: "elicitation/create".into(),
        params: None,
        asked_at: NOW,
        progress,
    }
}

fn held(progress: &[Progress]) -> State {
    let numbers = 0..progress.len() as u32;
    let questions = numbers.zip(progress).map(|(n, progress)| question(n, u64::from(n) + 50, progress.clone()));
    State::Held(Asked { questions: questions.collect(), next_number: progress.len() as u32 })
}

fn answered() -> Progress {
    Progress::Answered(Answer::Result("{}".into()))
}

fn ask(upstream_id: u64) -> Event {
    Event::Ask { upstream_id: Id::number(upstream_id), method: "elicitation/create".into(), params: None }
}

fn answer(number: u32) -> Event {
    Event::Answer { number, answer: Answer::Result("{}".into()) }
}

fn settle(upstream_id: u64) -> Event {
    Event::Settle { upstream_id: Id::number(upstream_id) }
}

/// A state in a few signs: for each question its upstream id, its number, and `?`, `@stream` or `!`.
fn show(state: &Result<State, Refused>) -> String {
    match state {
        Err(Refused::Ended) => "ended".into(),
        Err(Refused::NotApplicable) => "-".into(),
        Err(Refused::TooManyQuestions) => "full".into(),
        Ok(State::Queued) => "queued".into(),
        Ok(State::Ended(Ending::Returned { is_error: false })) => "returned".into(),
        Ok(State::Ended(Ending::Returned { is_error: true })) => "tool_error".into(),
        Ok(State::Ended(Ending::Errored)) => "errored".into(),
        Ok(State::Ended(Ending::Cancelled)) => "cancelled".into(),
        Ok(State::Held(asked)) => {
            let questions = asked.questions.iter().map(|question| {
                let progress = match &question.progress {
                    Progress::Waiting => "?".to_owned(),
                    Progress::Claimed(stream) => format!("@{stream}"),
                    Progress::Answered(_) => "!".to_owned(),
                };
                format!(" {:?}:{}{progress}", question.upstream_id, question.number)
            });
            "held".to_owned() + &questions.collect::<String>()
        }
    }
}

/// Each row is an event; its columns are what comes of it in each state.
#[test]
fn every_event_in_every_state() {
    let states = [
        State::Queued,
        held(&[]),
        held(&[Progress::Waiting]),
        held(&[Progress::Claimed(7)]),
        held(&[answered()]),
        State::Ended(Ending::Returned { is_error: false }),
        State::Ended(Ending::Returned { is_error: true }),
        State::Ended(Ending::Errored),
        State::Ended(Ending::Cancelled),
    ];
    // Columns:   queued,   held,        waiting,             claimed,             answered
    let table: [(Event, [&str; 5]); 17] = [
        (Event::Start, ["held", "-", "-", "-", "-"]),
        (ask(50), ["-", "held 50:0?", "-", "-", "-"]),
        (ask(60), ["-", "held 60:0?", "held 50:0? 60:1?", "held 50:0@7 60:1?", "held 50:0! 60:1?"]),
        (Event::Claim { number: 0, stream: 7 }, ["-", "-", "held 50:0@7", "-", "-"]),
        (Event::Claim { number: 0, stream: 8 }, ["-", "-", "held 50:0@8", "-", "-"]),
        (Event::Claim { number: 1, stream: 7 }, ["-", "-", "-", "-", "-"]),
        (Event::Release { stream: 7 }, ["-", "-", "-", "held 50:1?", "-"]),
        (Event::Release { stream: 8 }, ["-", "-", "-", "-", "-"]),
        (answer(0), ["-", "-", "held 50:0!", "held 50:0!", "-"]),
        (answer(1), ["-", "-", "-", "-", "-"]),
        (settle(50), ["-", "-", "held", "held", "held"]),
        (settle(60), ["-", "-", "-", "-", "-"]),
        (Event::Note("half".into()), ["queued", "held", "held 50:0?", "held 50:0@7", "held 50:0!"]),
        (Event::End(Ending::Returned { is_error: false }), ["returned"; 5]),
        (Event::End(Ending::Returned { is_error: true }), ["tool_error"; 5]),
        (Event::End(Ending::Errored), ["errored"; 5]),
        (Event::End(Ending::Cancelled), ["cancelled"; 5]),
    ];
    for (event, expected) in table {
        // 2025-11-25 tasks, "Task Status Lifecycle" 3: whatever comes, an ended task stays as it is.
        let expected = expected.into_iter().chain(["ended"; 4]);
        for (state, expected) in states.iter().zip(expected) {
            let after = show(&state.clone().apply(event.clone(), NOW));
            assert_eq!(after, expected, "{event:?} in {}", show(&Ok(state.clone())));
        }
    }
}

#[test]
fn statuses_of_the_core_dialect() {
    let table = [
        (State::Queued, "working"),
        (held(&[]), "working"),
        (held(&[Progress::Waiting]), "input_required"),
        (held(&[Progress::Claimed(1)]), "input_required"),
        (held(&[answered()]), "working"),
        (held(&[answered(), Progress::Waiting]), "input_required"),
        (State::Ended(Ending::Returned { is_error: false }), "completed"),
        (State::Ended(Ending::Returned { is_error: true }), "failed"),
        (State::Ended(Ending::Errored), "failed"),
        (State::Ended(Ending::Cancelled), "cancelled"),
    ];
    for (state, status) in table {
        assert_eq!(state.status().as_str(), status, "{state:?}");
        assert_eq!(state.is_ended(), matches!(status, "completed" | "failed" | "cancelled"));
    }
}

#[test]
fn a_closed_stream_gives_back_only_its_own_under_new_numbers() {
    let state =
        held(&[Progress::Claimed(1), answered(), Progress::Claimed(2), Progress::Claimed(1), Progress::Waiting]);
    let state = state.apply(Event::Release { stream: 1 }, NOW);
    assert_eq!(show(&state), "held 50:5? 51:1! 52:2@2 53:6? 54:4?");
    // The old number is dead, also for an answer that comes late.
    assert_eq!(show(&state.clone().unwrap().apply(answer(0), NOW)), "-");
    assert_eq!(show(&state.unwrap().apply(answer(5), NOW)), "held 50:5! 51:1! 52:2@2 53:6? 54:4?");
}

#[test]
fn numbers_never_repeat() {
    let mut state = held(&[]);
    for number in 0..100 {
        state = state.apply(ask(1), NOW).unwrap();
        assert_eq!(state.questions()[0].number, number);
        state = state.apply(settle(1), NOW).unwrap();
    }
}

#[test]
fn open_questions_are_bounded() {
    let mut state = held(&[]);
    for upstream_id in 0..MAX_QUESTIONS as u64 {
        state = state.apply(ask(upstream_id), NOW).unwrap();
    }
    assert_eq!(state.clone().apply(ask(1000), NOW), Err(Refused::TooManyQuestions));
    let state = state.apply(settle(0), NOW).unwrap();
    assert_eq!(state.apply(ask(1000), NOW).unwrap().questions().len(), MAX_QUESTIONS);
}

#[test]
fn a_question_remembers_what_and_when() {
    let event = Event::Ask {
        upstream_id: Id::string("q"),
        method: "sampling/createMessage".into(),
        params: Some(r#"{"n":1.0}"#.into()),
    };
    let state = held(&[]).apply(event, Timestamp::from_millis(5)).unwrap();
    let question = &state.questions()[0];
    assert_eq!(question.method.as_ref(), "sampling/createMessage");
    assert_eq!(question.params.as_deref(), Some(r#"{"n":1.0}"#));
    assert_eq!((question.asked_at, &question.progress), (Timestamp::from_millis(5), &Progress::Waiting));
}

#[test]
fn open_questions_hold_so_much_and_no_more() {
    let ask = |upstream_id: u64, bytes: usize| Event::Ask {
        upstream_id: Id::number(upstream_id),
        method: "m".into(),
        params: Some("x".repeat(bytes).into()),
    };
    let state = State::Held(Asked::default()).apply(ask(1, MAX_QUESTION_BYTES - 1), NOW).unwrap();
    assert_eq!(state.clone().apply(ask(2, 2), NOW), Err(Refused::TooManyQuestions));
    let state = state.apply(ask(2, 1), NOW).unwrap();
    let state = state.apply(Event::Settle { upstream_id: Id::number(1) }, NOW).unwrap();
    assert!(state.apply(ask(3, MAX_QUESTION_BYTES - 1), NOW).is_ok());
}
