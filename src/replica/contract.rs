//! What all replicas must share alike, as test functions: each gets a function by which processes join.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;

use super::{Replicas, Standing};
use crate::task::Holder;

/// A process joins, with its address and its lease.
pub(super) type Join<'a> = &'a (dyn Fn(Holder, Option<SocketAddr>, Duration) -> Arc<dyn Replicas> + Sync);

/// Makes a test of each function of the contract; the expression gives a function with the arguments of [`Join`].
macro_rules! each_contract_test {
    ($join:expr) => {
        $crate::replica::contract::each_contract_test! { $join =>
            a_lease_runs_out_unless_it_is_renewed,
            who_leaves_is_over_at_once,
            who_has_another_key_is_told_so,
            a_session_has_one_home,
            a_home_is_taken_from_the_dead_alone,
            a_home_is_given_up_by_whose_it_is,
            one_of_many_gets_a_home,
            an_ended_session_has_ended_for_everybody,
            notes_of_sessions_run_out,
            the_others_hear_what_is_published_in_order,
        }
    };
    ($join:expr => $($name:ident),+ $(,)?) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                let join = $join;
                let join = move |me, address, lease| Arc::new(join(me, address, lease)) as Arc<dyn Replicas>;
                $crate::replica::contract::$name(&join).await;
            }
        )+
    };
}
pub(super) use each_contract_test;

const LONG: Duration = Duration::from_secs(600);
const SHORT: Duration = Duration::from_millis(300);
const ALIVE: Standing = Standing::Alive { address: None };

fn join(join: Join<'_>, name: &str) -> Arc<dyn Replicas> {
    join(Holder::begin(name), None, LONG)
}

/// Two who share what loses their leases, and the mark as well where `lose` is told so: each counts a loss once, whoever finds it
/// first and however, and however often it is looked at until both leases are there again.
pub(super) async fn a_loss_is_counted_once(both: [&dyn Replicas; 2], lose: impl AsyncFn(bool)) {
    let [a, b] = both;
    let look = async |one: &dyn Replicas, other: &dyn Replicas| {
        for _ in 0..3 {
            one.standing(other.me()).await.unwrap();
        }
    };
    let renew = async |one: &dyn Replicas| one.renew().await.unwrap();
    for one in both {
        renew(one).await;
    }
    let mut losses = 0;
    for is_mark_lost in [true, false, true, false] {
        for order in 0..5 {
            lose(is_mark_lost).await;
            losses += 1;
            match order {
                0 => {}
                1 => look(a, b).await,
                2 => {
                    look(a, b).await;
                    look(b, a).await;
                }
                3 => {
                    renew(a).await;
                    look(b, a).await;
                }
                _ => {
                    look(b, a).await;
                    renew(a).await;
                    look(b, a).await;
                }
            }
            for one in [a, b, a, b] {
                renew(one).await;
            }
            look(a, b).await;
            look(b, a).await;
            let counted = both.map(Replicas::losses);
            assert_eq!(counted, [losses; 2], "whether the mark was lost: {is_mark_lost}, {order}");
            assert_eq!(a.standing(b.me()).await.unwrap(), ALIVE);
        }
    }
}

/// Until it is so; the test's own limit ends it where that never comes.
async fn until(is_so: impl AsyncFn() -> bool) {
    while !is_so().await {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

pub(super) async fn a_lease_runs_out_unless_it_is_renewed(of: Join<'_>) {
    let address = Some("127.0.0.1:8081".parse().unwrap());
    let (short, long) = (of(Holder::begin("a"), address, SHORT), join(of, "b"));
    assert_eq!(long.standing(short.me()).await.unwrap(), Standing::Over);
    long.renew().await.unwrap();
    for _ in 0..2 {
        short.renew().await.unwrap();
        assert_eq!(long.standing(short.me()).await.unwrap(), Standing::Alive { address });
        until(async || long.standing(short.me()).await.unwrap() == Standing::Over).await;
    }
    assert_eq!(short.standing(long.me()).await.unwrap(), ALIVE);
    // Another life of the same name is somebody else.
    assert_eq!(long.standing(&Holder::begin("b")).await.unwrap(), Standing::Over);
}

pub(super) async fn who_leaves_is_over_at_once(of: Join<'_>) {
    let (a, b) = (join(of, "a"), join(of, "b"));
    a.renew().await.unwrap();
    b.renew().await.unwrap();
    a.leave().await;
    assert_eq!(b.standing(a.me()).await.unwrap(), Standing::Left);
    assert_eq!(b.standing(b.me()).await.unwrap(), ALIVE);
}

pub(super) async fn who_has_another_key_is_told_so(of: Join<'_>) {
    let (a, b, short) = (join(of, "a"), join(of, "b"), of(Holder::begin("c"), None, SHORT));
    let keys = |keys: &[&str]| keys.iter().map(|key| (*key).to_owned()).collect::<Vec<_>>();
    // It runs out, so that all can begin anew with another.
    assert!(short.agree(&keys(&["old"])).await.unwrap());
    assert!(!a.agree(&keys(&["new"])).await.unwrap());
    until(async || a.agree(&keys(&["new"])).await.unwrap()).await;
    // A new key is known everywhere before it is used.
    assert!(!b.agree(&keys(&["newer"])).await.unwrap());
    assert!(b.agree(&keys(&["newer", "new"])).await.unwrap());
    assert!(a.agree(&keys(&["new"])).await.unwrap(), "it is the one of those who were there");
}

pub(super) async fn a_session_has_one_home(of: Join<'_>) {
    let (a, b) = (join(of, "a"), join(of, "b"));
    assert_eq!(b.home_of(7).await.unwrap(), None);
    assert_eq!(a.claim_home(7, None, LONG).await.unwrap(), *a.me());
    assert_eq!(b.claim_home(7, None, LONG).await.unwrap(), *a.me());
    assert_eq!(a.claim_home(7, None, LONG).await.unwrap(), *a.me());
    assert_eq!(b.home_of(7).await.unwrap().as_ref(), Some(a.me()));
    assert_eq!(b.claim_home(8, None, LONG).await.unwrap(), *b.me());
    assert_eq!(b.claim_home(u128::MAX, None, LONG).await.unwrap(), *b.me());
    assert_eq!(a.home_of(u128::MAX).await.unwrap().as_ref(), Some(b.me()));
}

pub(super) async fn a_home_is_taken_from_the_dead_alone(of: Join<'_>) {
    let (a, b, c) = (join(of, "a"), join(of, "b"), join(of, "c"));
    // `a` made it, and nothing is noted.
    assert_eq!(b.claim_home(7, Some(a.me()), LONG).await.unwrap(), *b.me());
    assert_eq!(c.claim_home(7, Some(a.me()), LONG).await.unwrap(), *b.me());
    assert_eq!(c.claim_home(7, Some(b.me()), LONG).await.unwrap(), *c.me());
    assert_eq!(b.claim_home(7, Some(b.me()), LONG).await.unwrap(), *c.me());
    assert_eq!(a.home_of(7).await.unwrap().as_ref(), Some(c.me()));
}

pub(super) async fn a_home_is_given_up_by_whose_it_is(of: Join<'_>) {
    let (a, b, c) = (join(of, "a"), join(of, "b"), join(of, "c"));
    let nobody = Holder::nobody();
    a.release_home(7, LONG).await.unwrap();
    assert_eq!(b.home_of(7).await.unwrap().as_ref(), Some(&nobody));
    assert_eq!(b.standing(&nobody).await.unwrap(), Standing::Over);
    assert_eq!(b.claim_home(7, Some(&nobody), LONG).await.unwrap(), *b.me());
    assert_eq!(c.claim_home(7, Some(&nobody), LONG).await.unwrap(), *b.me());
    // Another's stays another's.
    a.release_home(7, LONG).await.unwrap();
    assert_eq!(c.home_of(7).await.unwrap().as_ref(), Some(b.me()));
    b.release_home(7, LONG).await.unwrap();
    assert_eq!(a.claim_home(7, Some(&nobody), LONG).await.unwrap(), *a.me());
}

pub(super) async fn one_of_many_gets_a_home(of: Join<'_>) {
    let dead = Holder::begin("dead");
    let all: Vec<_> = (0..8).map(|_| join(of, "one")).collect();
    for session in 0..16 {
        let claims = all.iter().map(|one| one.claim_home(session, Some(&dead), LONG));
        let homes = futures_util::future::try_join_all(claims).await.unwrap();
        let won = all.iter().zip(&homes).filter(|(one, home)| one.me() == *home).count();
        assert_eq!(won, 1, "{homes:?}");
        assert!(homes.iter().all(|home| *home == homes[0]), "{homes:?}");
    }
}

pub(super) async fn an_ended_session_has_ended_for_everybody(of: Join<'_>) {
    let (a, b) = (join(of, "a"), join(of, "b"));
    a.claim_home(7, None, LONG).await.unwrap();
    assert!(!b.has_ended(7).await.unwrap());
    b.end_session(7, LONG).await.unwrap();
    a.end_session(7, LONG).await.unwrap();
    assert!(a.has_ended(7).await.unwrap());
    assert!(b.has_ended(7).await.unwrap());
    assert!(!b.has_ended(8).await.unwrap());
    assert_eq!(a.home_of(7).await.unwrap(), None);
}

pub(super) async fn notes_of_sessions_run_out(of: Join<'_>) {
    let (a, b) = (join(of, "a"), join(of, "b"));
    a.claim_home(7, None, SHORT).await.unwrap();
    a.end_session(8, SHORT).await.unwrap();
    a.claim_home(9, None, SHORT).await.unwrap();
    a.claim_home(9, None, LONG).await.unwrap();
    until(async || b.home_of(7).await.unwrap().is_none()).await;
    until(async || !b.has_ended(8).await.unwrap()).await;
    assert_eq!(b.claim_home(7, None, LONG).await.unwrap(), *b.me());
    assert_eq!(b.home_of(9).await.unwrap().as_ref(), Some(a.me()));
}

pub(super) async fn the_others_hear_what_is_published_in_order(of: Join<'_>) {
    let (a, b, c) = (join(of, "a"), join(of, "b"), join(of, "c"));
    let (mut by_a, by_b, by_c, also_by_c) = (a.subscribe(), b.subscribe(), c.subscribe(), c.subscribe());
    // Some may get lost, above all before everybody has begun to listen; what comes keeps its order.
    let hear = async |mut messages: mpsc::Receiver<Bytes>| {
        let mut last = 0;
        for _ in 0..100 {
            let heard = messages.recv().await.unwrap();
            let (text, number) = heard.split_at(4);
            assert_eq!(text, b"\r\n\0\xff");
            let number = u32::from_be_bytes(number.try_into().unwrap());
            assert!(number > last, "{number} after {last}");
            last = number;
        }
    };
    let publish = async {
        for number in 1_u32.. {
            a.publish([b"\r\n\0\xff", &number.to_be_bytes()[..]].concat().into()).await;
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        () = publish => {}
        _ = futures_util::future::join3(hear(by_b), hear(by_c), hear(also_by_c)) => {}
    }
    // It has not heard itself.
    let answer = async {
        loop {
            b.publish(Bytes::from("to a")).await;
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let heard = tokio::select! {
        () = answer => None,
        heard = by_a.recv() => heard,
    };
    assert_eq!(heard.unwrap(), "to a");
}
