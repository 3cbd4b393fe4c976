//! The codec over every split of every line ending and multi-byte character.

use proptest::prelude::*;

use super::*;

const LIMIT: usize = 1 << 20;

fn frames(chunks: &[&[u8]]) -> Vec<Bytes> {
    let mut framer = Framer::new(LIMIT);
    let mut out = Vec::new();
    for chunk in chunks {
        framer.push(Bytes::copy_from_slice(chunk));
        while let Some(frame) = framer.next_frame().unwrap() {
            out.push(frame);
        }
    }
    out
}

/// What a reader gets, whatever the line endings were.
fn events(chunks: &[&[u8]]) -> Vec<(Option<String>, Option<Vec<u8>>)> {
    frames(chunks)
        .iter()
        .map(|frame| {
            let event = Event::parse(frame);
            (event.id.map(Cow::into_owned), event.data.map(Cow::into_owned))
        })
        .collect()
}

#[test]
fn every_split_of_every_line_ending_gives_the_same_events() {
    for end in ["\n", "\r", "\r\n"] {
        let text = "id: 1\ndata: grüße 漢字 🎈\ndata: two\n\n:comment\n\ndata:x\nid:2\nretry: 50\n\n\ndata\n\n"
            .replace('\n', end);
        let whole = events(&[text.as_bytes()]);
        assert_eq!(
            whole,
            [
                (Some("1".into()), Some("grüße 漢字 🎈\ntwo".as_bytes().to_vec())),
                (None, None),
                (Some("2".into()), Some(b"x".to_vec())),
                (None, Some(Vec::new())),
            ]
        );
        let bytes = text.as_bytes();
        for first in 0..=bytes.len() {
            for second in first..=bytes.len() {
                let parts = [&bytes[..first], &bytes[first..second], &bytes[second..]];
                assert_eq!(events(&parts), whole, "{end:?} split at {first} and {second}");
            }
        }
        let single: Vec<&[u8]> = bytes.chunks(1).collect();
        assert_eq!(events(&single), whole);
    }
}

#[test]
fn a_lone_event_leaves_with_its_last_byte() {
    for text in ["data: a\n\n", "data: a\r\r", "data: a\r\n\r\n"] {
        assert_eq!(frames(&[text.as_bytes()]).len(), 1, "{text:?}");
    }
    assert_eq!(frames(&[b"data: a\r\n\r"]).len(), 1, "a CR ends the line, whatever follows");
    assert_eq!(events(&[b"data: a\r\n\r", b"\ndata: b\r\n\r\n"]).len(), 2);
}

#[test]
fn whole_frames_are_not_copied() {
    let chunk = Bytes::from_static(b"data: a\n\ndata: b\n\n");
    let mut framer = Framer::new(LIMIT);
    framer.push(chunk.clone());
    assert_eq!(framer.next_frame().unwrap().unwrap().as_ptr(), chunk.as_ptr());
    assert!(framer.next_frame().unwrap().is_some());
    assert!(framer.next_frame().unwrap().is_none() && framer.at_boundary());
}

#[test]
fn endless_lines_and_endless_events_are_bounded() {
    for piece in ["data: xxxxxxxx", "x\n", ":\n"] {
        let mut framer = Framer::new(100);
        let refused = (0..200).any(|_| {
            framer.push(Bytes::copy_from_slice(piece.as_bytes()));
            framer.next_frame().is_err()
        });
        assert!(refused, "{piece:?}");
    }
    let exactly = format!("data: {}\n\n", "x".repeat(92));
    let mut framer = Framer::new(exactly.len());
    framer.push(Bytes::from(exactly.clone()));
    assert!(framer.next_frame().unwrap().is_some());
    let mut framer = Framer::new(exactly.len() - 1);
    framer.push(Bytes::from(exactly));
    assert!(framer.next_frame().is_err());
}

#[test]
fn reads_odd_fields_as_the_standard_says() {
    let event = Event::parse(b"\xef\xbb\xbfdata:  two spaces\nevent: message\nid: a\0b\nretry: 1x\nunknown: y\nid\n\n");
    assert_eq!(event.data.as_deref(), Some(b" two spaces".as_slice()));
    assert_eq!((event.id.as_deref(), event.retry), (Some(""), None));
    assert!(event.has_message());
    assert!(!Event::parse(b"event: endpoint\ndata: /x\n\n").has_message());
    assert!(!Event::parse(b"id: 1\ndata: \n\n").has_message());
}

#[test]
fn ids_get_a_prefix_and_nothing_else_changes() {
    let prefixed = prefix_ids(Bytes::from_static(b"id:7\r\nevent: message\r\ndata: id: x\r\n\r\n"), "u.");
    assert_eq!(prefixed, "id: u.7\nevent: message\ndata: id: x\n\n");
    let bare = Bytes::from_static(b"data: id: x\n\n");
    assert_eq!(prefix_ids(bare.clone(), "u.").as_ptr(), bare.as_ptr());
    assert_eq!(prefix_ids(Bytes::from_static(b"id:\ndata: x\n\n"), "u."), "id:\ndata: x\n\n");
}

#[test]
fn what_nearly_all_servers_write_can_pass_unread() {
    for (text, has_messages) in [
        ("data: {}\n\n", true),
        ("event: message\ndata: {\"id\":1}\n\n: still here\n\n", true),
        ("event: message\r\ndata: {\r\ndata: }\r\n\r\n", true),
        (":\n\n", false),
    ] {
        assert_eq!(plain_events(text.as_bytes()), Some(has_messages), "{text:?}");
    }
    for text in [
        "",
        "data: {}\n",
        "data: {}",
        "id: 1\ndata: {}\n\n",
        "data:\n\n",
        "data: \n\n",
        "retry: 5\n\n",
        "event: other\ndata: {}\n\n",
    ]
    .into_iter()
    .chain(["data: {}\rid: 1\n\n", "data: {}\r\r", "\u{feff}data: {}\n\n"])
    {
        assert_eq!(plain_events(text.as_bytes()), None, "{text:?}");
    }
}

#[test]
fn the_last_message_is_found_behind_comments() {
    let events = Bytes::from_static(b"data: 1\n\ndata: 2\ndata: 3\n\n: bye\n\n");
    assert_eq!(last_message(events), Some(b"2\n3".to_vec()));
    assert_eq!(last_message(Bytes::from_static(b": bye\n\n")), None);
}

#[test]
fn a_chunk_that_passes_unread_leaves_no_trace() {
    let mut framer = Framer::new(LIMIT);
    framer.push(Bytes::from_static(b"data: 1\r\r"));
    assert!(framer.next_frame().unwrap().is_some());
    assert_eq!(framer.pass(b"data: 2\n\n"), Some(true));
    framer.push(Bytes::from_static(b"\ndata: 3\n\n"));
    assert_eq!(framer.next_frame().unwrap().unwrap(), "data: 3\n\n");
    framer.push(Bytes::from_static(b"data: 4"));
    assert!(framer.next_frame().unwrap().is_none());
    assert_eq!(framer.pass(b"data: 5\n\n"), None);
}

proptest! {
    #[test]
    fn bytes_that_pass_unread_are_whole_messages_without_more(
        lines in proptest::collection::vec("(data: ?|:|event: message|id: |retry: |)[x\r]{0,2}\r?", 0..6),
    ) {
        let text = format!("{}\n\n", lines.join("\n"));
        if let Some(data) = plain_message(text.as_bytes()) {
            prop_assert_eq!(plain_events(text.as_bytes()), Some(true));
            prop_assert_eq!(events(&[text.as_bytes()]), [(None, Some(data.to_vec()))]);
        }
        if let Some(has_messages) = plain_events(text.as_bytes()) {
            let frames = frames(&[text.as_bytes()]);
            let events: Vec<Event<'_>> = frames.iter().map(|frame| Event::parse(frame)).collect();
            prop_assert_eq!(has_messages, events.iter().any(Event::has_message));
            for event in events {
                prop_assert!(event.id.is_none() && event.retry.is_none() && (event.data.is_none() || event.has_message()));
            }
        }
    }
}

proptest! {
    #[test]
    fn what_is_written_is_read_back_over_any_split(
        parts in proptest::collection::vec("[a-zé漢🎈\n:\\. ]{0,12}", 1..5),
        cuts in proptest::collection::vec(any::<proptest::sample::Index>(), 0..6),
    ) {
        let stream: Vec<u8> = parts.iter().flat_map(|part| write_event(Some("i"), part.as_bytes())).collect();
        let mut places: Vec<usize> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).collect();
        places.sort_unstable();
        let mut chunks = Vec::new();
        let mut start = 0;
        for place in places {
            chunks.push(&stream[start..place]);
            start = place;
        }
        chunks.push(&stream[start..]);
        let read: Vec<_> = events(&chunks).into_iter().map(|(_, data)| data.unwrap()).collect();
        let wanted: Vec<_> = parts.iter().map(|part| part.as_bytes().to_vec()).collect();
        prop_assert_eq!(read, wanted);
    }

    #[test]
    fn an_event_in_pieces_is_the_event(
        pieces in proptest::collection::vec("[aé\r\n]{0,4}", 0..8),
        id in proptest::option::of("[a-z]{1,3}"),
    ) {
        let mut writer = EventWriter::new(id.as_deref());
        let mut written: Vec<u8> = writer.head().unwrap().to_vec();
        for piece in &pieces {
            let lines = writer.lines(Bytes::copy_from_slice(piece.as_bytes()));
            // Nothing that ends a line is at the end of a piece.
            prop_assert!(!matches!(lines.last(), Some(b'\r' | b'\n')));
            written.extend_from_slice(&lines);
        }
        written.extend_from_slice(&writer.tail().unwrap());
        prop_assert_eq!(written, write_event(id.as_deref(), pieces.concat().as_bytes()).to_vec());
        prop_assert!(writer.head().is_none() && writer.tail().is_none());
    }

    #[test]
    fn arbitrary_bytes_never_panic(chunks in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40), 0..10)) {
        let slices: Vec<&[u8]> = chunks.iter().map(Vec::as_slice).collect();
        for frame in frames(&slices) {
            drop(Event::parse(&frame));
            drop(prefix_ids(frame, "u."));
        }
    }
}
