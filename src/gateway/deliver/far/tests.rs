//! Which process hears of a task: asked once, remembered for a while, forgotten when it says so.

use crate::clock::Timestamp;
use crate::task::{Asked, State, sample};

use super::*;

const FRESH: Duration = Duration::from_secs(10);

struct World {
    far: Far,
    outgoing: mpsc::Receiver<Message>,
    other: Holder,
}

impl World {
    fn new() -> Self {
        let (far, outgoing) = Far::new(Holder::begin("me"), FRESH, false);
        Self { far, outgoing, other: Holder::begin("other") }
    }

    fn notify(&self, task: &Task, text: &str) {
        self.far.notify(task, &Bytes::copy_from_slice(text.as_bytes()), true);
    }

    /// What has been told since the last look.
    fn told(&mut self) -> Vec<Message> {
        std::iter::from_fn(|| self.outgoing.try_recv().ok()).collect()
    }

    fn who(&self, task: &Task) -> Message {
        Message::who(task, &self.far.me)
    }

    fn event(&self, task: &Task, text: &str) -> Message {
        let text = Bytes::copy_from_slice(text.as_bytes());
        Message::event((task.id, task.session), &self.other, &self.far.me, &text)
    }
}

fn task() -> Task {
    let now = Timestamp::from_millis(1_767_225_600_000);
    let (state, holder) = (State::Held(Asked::default()), Holder::begin("me"));
    Task { state, holder, epoch: 1, version: 1, ..sample::task(sample::owner("t", "s"), now, FRESH) }
}

#[tokio::test(start_paused = true)]
async fn what_waits_for_the_answer_goes_to_whoever_answers() {
    let (mut world, task) = (World::new(), task());
    for text in ["1", "2"] {
        world.notify(&task, text);
    }
    assert_eq!(world.told(), [world.who(&task)]);
    world.far.hears(task.id, &world.other);
    assert_eq!(world.told(), [world.event(&task, "1"), world.event(&task, "2")]);
    // From now on it is known.
    world.notify(&task, "3");
    assert_eq!(world.told(), [world.event(&task, "3")]);
    // Another task is another matter.
    let second = self::task();
    world.notify(&second, "4");
    assert_eq!(world.told(), [world.who(&second)]);
}

#[tokio::test(start_paused = true)]
async fn only_so_much_waits_and_only_so_long() {
    let (mut world, task) = (World::new(), task());
    for number in 0..MOST_WAITING + 5 {
        world.notify(&task, &number.to_string());
    }
    world.told();
    world.far.hears(task.id, &world.other);
    assert_eq!(world.told().len(), MOST_WAITING);
    // An answer that comes late says who hears of it from then on, and nothing else.
    let late = self::task();
    world.notify(&late, "1");
    world.told();
    tokio::time::advance(ASKED).await;
    world.far.hears(late.id, &world.other);
    assert_eq!(world.told(), []);
    world.notify(&late, "2");
    assert_eq!(world.told(), [world.event(&late, "2")]);
}

#[tokio::test(start_paused = true)]
async fn that_nobody_hears_of_a_task_is_remembered_for_a_while() {
    let (mut world, task) = (World::new(), task());
    world.notify(&task, "1");
    assert_eq!(world.told(), [world.who(&task)]);
    tokio::time::advance(ASKED).await;
    world.notify(&task, "2");
    assert_eq!(world.told(), []);
    tokio::time::advance(FRESH).await;
    world.notify(&task, "3");
    assert_eq!(world.told(), [world.who(&task)]);
    // So is who does.
    world.far.hears(task.id, &world.other);
    world.told();
    tokio::time::advance(FRESH).await;
    world.notify(&task, "4");
    assert_eq!(world.told(), [world.who(&task)]);
}

#[tokio::test(start_paused = true)]
async fn one_that_hears_no_more_is_told_no_more() {
    let (mut world, task) = (World::new(), task());
    world.far.hears(task.id, &world.other);
    // Somebody else has nothing to say about it.
    world.far.hears_no_more(task.id, &Holder::begin("third"));
    world.notify(&task, "1");
    assert_eq!(world.told(), [world.event(&task, "1")]);
    world.far.hears_no_more(task.id, &world.other);
    world.notify(&task, "2");
    assert_eq!(world.told(), [world.who(&task)]);
}

#[tokio::test(start_paused = true)]
async fn of_a_task_whose_streams_are_here_nobody_is_asked() {
    let (mut world, task) = (World::new(), task());
    world.far.notify(&task, &Bytes::from_static(b"1"), false);
    assert_eq!(world.told(), []);
    // Unless another has said that it has one.
    world.far.hears(task.id, &world.other);
    world.far.notify(&task, &Bytes::from_static(b"2"), false);
    assert_eq!(world.told(), [world.event(&task, "2")]);
}

#[tokio::test(start_paused = true)]
async fn memory_is_bounded_and_what_finds_no_room_is_lost() {
    let (mut world, one) = (World::new(), task());
    world.far.hears(one.id, &world.other);
    for _ in 0..MOST {
        world.far.hears(TaskId::random(), &world.other);
    }
    assert!(world.far.ways.len() <= MOST);
    world.notify(&one, "1");
    assert_eq!(world.told(), [world.who(&one)]);
    world.far.hears(one.id, &world.other);
    for _ in 0..crate::replica::BUS_DEPTH * 2 {
        world.notify(&one, "2");
    }
    assert_eq!(world.told().len(), crate::replica::BUS_DEPTH);
}

#[test]
fn streams_say_whose_they_are_and_die_with_it() {
    let (me, other) = (Holder::begin("me"), Holder::begin("other"));
    let (far, _outgoing) = Far::new(me.clone(), FRESH, false);
    let (mine, theirs) = (first_stream(&me) + 5, first_stream(&other) + 5);
    assert!(far.is_mine(mine) && !far.is_mine(theirs));
    assert!(!far.is_dead(theirs));
    far.note_dead(&other);
    assert!(far.is_dead(theirs) && far.is_dead(theirs + 1) && !far.is_dead(mine));
}
