//! Rates at, under and over their bounds.

use super::*;

use futures_util::FutureExt;
use futures_util::future::join_all;

const SECOND: Duration = Duration::from_secs(1);

fn rate(count: u32, period: Duration, burst: u32) -> Rate {
    Rate::new(NonZeroU32::new(count).unwrap(), period, NonZeroU32::new(burst).unwrap()).unwrap()
}

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn name(tenant: &str) -> Arc<str> {
    Arc::from(tenant)
}

fn requests(rate: Rate) -> Limits {
    Limits { requests: Some(rate), ..Limits::default() }
}

fn polls(rate: Rate) -> Limits {
    Limits { polls: Some(rate), ..Limits::default() }
}

#[tokio::test(start_paused = true)]
async fn a_burst_passes_and_then_one_at_each_interval() {
    let rates = Rates::new(requests(rate(10, SECOND, 3)), []);
    let tenant = name("a");
    for _ in 0..3 {
        assert_eq!(rates.check_request(&tenant), Ok(()));
    }
    assert_eq!(rates.check_request(&tenant), Err(RetryAfter(millis(100))));
    tokio::time::advance(millis(99)).await;
    assert_eq!(rates.check_request(&tenant), Err(RetryAfter(millis(1))));
    tokio::time::advance(millis(1)).await;
    assert_eq!(rates.check_request(&tenant), Ok(()));
    assert_eq!(rates.check_request(&tenant), Err(RetryAfter(millis(100))));

    // Unused time fills the bucket, but never past the burst.
    tokio::time::advance(SECOND).await;
    let passed = (0..10).filter(|_| rates.check_request(&tenant).is_ok()).count();
    assert_eq!(passed, 3);
}

#[tokio::test(start_paused = true)]
async fn a_rate_may_be_less_than_one_in_a_second() {
    let rates = Rates::new(requests(rate(30, Duration::from_secs(60), 1)), []);
    assert_eq!(rates.check_request(&name("a")), Ok(()));
    assert_eq!(rates.check_request(&name("a")), Err(RetryAfter(2 * SECOND)));
}

#[tokio::test(start_paused = true)]
async fn each_tenant_and_each_kind_has_its_own_bucket() {
    let one = || Some(rate(1, SECOND, 1));
    let default = Limits { requests: one(), polls: None };
    let named = [(name("big"), requests(rate(1, SECOND, 2))), (name("free"), Limits::default())];
    let rates = Rates::new(default, named);

    for tenant in [name("a"), name("b"), name("default")] {
        assert_eq!(rates.check_request(&tenant), Ok(()));
        assert!(rates.check_request(&tenant).is_err());
        for _ in 0..100 {
            assert_eq!(rates.admit_poll(&tenant).now_or_never(), Some(Ok(())));
        }
    }
    assert_eq!(rates.check_request(&name("big")), Ok(()));
    assert_eq!(rates.check_request(&name("big")), Ok(()));
    assert!(rates.check_request(&name("big")).is_err());
    for _ in 0..100 {
        assert_eq!(rates.check_request(&name("free")), Ok(()));
    }
}

#[tokio::test(start_paused = true)]
async fn unset_rates_bound_nothing_and_keep_nothing() {
    let rates = Rates::new(Limits::default(), [(name("named"), Limits::default())]);
    for _ in 0..1000 {
        for tenant in [name("named"), name("a")] {
            assert_eq!(rates.check_request(&tenant), Ok(()));
            assert_eq!(rates.admit_poll(&tenant).now_or_never(), Some(Ok(())));
        }
    }
    let only_polls = Rates::new(Limits { polls: Some(rate(1, SECOND, 1)), ..Limits::default() }, []);
    assert_eq!(only_polls.check_request(&name("a")), Ok(()));
    for rates in [rates, only_polls] {
        assert_eq!(rates.unnamed.len(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn polls_over_the_rate_take_turns_for_five_seconds_and_are_then_refused() {
    let rates = Rates::new(polls(rate(10, SECOND, 2)), []);
    let tenant = name("a");
    let started = Instant::now();
    let poll = async || {
        let admitted = rates.admit_poll(&tenant).await;
        (admitted, started.elapsed())
    };
    let answers = join_all((0..54).map(|_| poll())).await;

    let expected = (0..54).map(|number: u64| match number {
        0..2 => (Ok(()), Duration::ZERO),
        2..52 => (Ok(()), millis((number - 1) * 100)),
        _ => (Err(RetryAfter(millis(100))), Duration::ZERO),
    });
    assert_eq!(answers, expected.collect::<Vec<_>>());
    assert_eq!(answers[51].1, LONGEST_DELAY);

    // All turns have been taken by now, so the bucket has room for the polls of this moment alone.
    tokio::time::advance(millis(200)).await;
    let before = Instant::now();
    assert_eq!(rates.admit_poll(&tenant).await, Ok(()));
    assert_eq!(rates.admit_poll(&tenant).await, Ok(()));
    assert_eq!(before.elapsed(), Duration::ZERO);
    assert_eq!(rates.admit_poll(&tenant).await, Ok(()));
    assert_eq!(before.elapsed(), millis(100));
}

#[tokio::test(start_paused = true)]
async fn a_poll_whose_turn_is_further_off_than_the_longest_delay_is_refused_at_once() {
    let rates = Rates::new(polls(rate(1, 6 * SECOND, 1)), []);
    assert_eq!(rates.admit_poll(&name("a")).now_or_never(), Some(Ok(())));
    assert_eq!(rates.admit_poll(&name("a")).now_or_never(), Some(Err(RetryAfter(6 * SECOND))));
}

#[tokio::test(start_paused = true)]
async fn hanging_up_while_delayed_gains_nothing() {
    let rates = Rates::new(polls(rate(1, SECOND, 1)), []);
    let tenant = name("a");
    assert_eq!(rates.admit_poll(&tenant).await, Ok(()));
    for _ in 0..5 {
        assert_eq!(rates.admit_poll(&tenant).now_or_never(), None);
    }
    assert_eq!(rates.admit_poll(&tenant).now_or_never(), Some(Err(RetryAfter(SECOND))));
}

#[tokio::test(start_paused = true)]
async fn tenants_without_a_name_share_a_bucket_when_they_are_too_many() {
    let rates = Rates::new(requests(rate(1, SECOND, 1)), []);
    for number in 0..crowd::MOST {
        assert_eq!(rates.check_request(&name(&number.to_string())), Ok(()));
    }
    assert_eq!(rates.check_request(&name("one more")), Ok(()));
    assert!(rates.check_request(&name("yet another")).is_err());
    assert!(rates.check_request(&name("0")).is_err());
    assert_eq!(rates.unnamed.len(), crowd::MOST);

    // A bucket that has filled is forgotten; those still in use stay.
    tokio::time::advance(millis(900)).await;
    tokio::time::advance(millis(100)).await;
    assert_eq!(rates.check_request(&name("0")), Ok(()));
    assert_eq!(rates.check_request(&name("yet another")), Ok(()));
    assert_eq!(rates.unnamed.len(), 2);
    assert!(rates.check_request(&name("0")).is_err());
}

#[test]
fn rates_that_no_bucket_can_keep_are_refused() {
    let of = |count: u32, period: Duration, burst: u32| {
        Rate::new(NonZeroU32::new(count).unwrap(), period, NonZeroU32::new(burst).unwrap())
    };
    let year = Duration::from_secs(366 * 24 * 3600);
    assert!(of(1, Duration::ZERO, 1).is_none());
    assert!(of(2, Duration::from_nanos(1), 1).is_none());
    assert!(of(1, Duration::MAX, u32::MAX).is_none());
    assert!(of(1, year + Duration::from_nanos(1), 1).is_none());
    assert!(of(1, year, 1).is_some());
    assert!(of(1_000_000_000, SECOND, u32::MAX).is_some());
    assert!(of(1, Duration::from_nanos(1), 1).is_some());
}

#[tokio::test(start_paused = true)]
async fn the_fastest_and_the_slowest_rate_can_be_counted() {
    let year = Duration::from_secs(366 * 24 * 3600);
    for rate in [rate(1, Duration::from_nanos(1), u32::MAX), rate(1, year, 1), rate(u32::MAX, 100 * SECOND, 1)] {
        let rates = Rates::new(Limits { requests: Some(rate), polls: Some(rate) }, []);
        assert_eq!(rates.check_request(&name("a")), Ok(()));
        assert_eq!(rates.admit_poll(&name("a")).now_or_never(), Some(Ok(())));
    }
}
