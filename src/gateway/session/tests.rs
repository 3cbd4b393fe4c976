//! Sessions: what their ids carry, whose they are, and when they end.

use async_trait::async_trait;
use http::HeaderMap;

use super::*;
use crate::gateway::sample;
use crate::metrics::Metrics;
use crate::oauth::secret::SubjectToken;
use crate::upstream::{Error, Listening, Opened, Outgoing, Reply, Upstream};

/// A server that is never asked anything here.
#[derive(Debug)]
struct Nowhere;

#[async_trait]
impl Upstream for Nowhere {
    async fn open(&self, _: &str, _: HeaderMap, _: Option<&Arc<SubjectToken>>) -> Result<Opened, Error> {
        Err(Error::SessionGone)
    }

    async fn discover(&self, _: &str, _: Option<&Arc<SubjectToken>>) -> Result<Opened, Error> {
        Err(Error::SessionGone)
    }

    fn stateless(&self) -> SessionKey {
        SessionKey { id: None, version: ProtocolVersion::LATEST_MODERN, subject: None }
    }

    async fn send(&self, _: &SessionKey, _: Outgoing) -> Result<Reply, Error> {
        Err(Error::SessionGone)
    }

    async fn listen(&self, _: &SessionKey, _: Option<&str>) -> Result<Listening, Error> {
        Ok(Listening::NotOffered)
    }

    async fn close(&self, _: &SessionKey) {}
}

fn route(name: &str) -> Route {
    let metrics = Metrics::new(&[name.into()], &[]);
    sample::route(name, Arc::new(Nowhere), &metrics)
}

fn alice() -> Principal {
    Principal::of_api_key("acme".into(), "alice".into())
}

fn terms(route: &Route) -> Terms {
    Terms {
        route: Arc::clone(&route.name),
        principal: alice().digest(),
        version: ProtocolVersion::V2025_11_25,
        upstream: SessionKey { id: Some("upstream-1".into()), version: ProtocolVersion::V2025_06_18, subject: None },
        client: ClientCapabilities { form: true, roots: true, ..ClientCapabilities::default() },
    }
}

fn table(sealer: &Arc<Sealer>, max: usize) -> Sessions {
    table_at(sealer, max, Clock::system())
}

fn table_at(sealer: &Arc<Sealer>, max: usize, clock: Clock) -> Sessions {
    let config = Config { idle: Duration::from_secs(60), max };
    Sessions::new(config, Arc::clone(sealer), clock)
}

fn create(sessions: &Sessions, route: &Route) -> Arc<Session> {
    let room = sessions.reserve(None).expect("there is room");
    sessions.create(room, terms(route), &route.metrics).expect("the id is short")
}

#[tokio::test(start_paused = true)]
async fn a_session_is_its_owners_on_its_route_alone() {
    let sealer = Arc::new(Sealer::random());
    let sessions = table(&sealer, 10);
    let (here, there) = (route("here"), route("there"));
    let made = create(&sessions, &here);
    assert!(made.token.bytes().all(|byte| byte.is_ascii_graphic()) && made.token.len() <= 2048);
    let found = sessions.find(&made.token, &here, &alice()).expect("it is alive");
    assert!(Arc::ptr_eq(&found, &made));
    let bob = Principal::of_api_key("acme".into(), "bob".into());
    assert!(sessions.find(&made.token, &here, &bob).is_none());
    assert!(sessions.find(&made.token, &there, &alice()).is_none());
    assert!(sessions.find("", &here, &alice()).is_none());
    assert!(sessions.find("grüße", &here, &alice()).is_none());
    assert!(sessions.end(&made) && !sessions.end(&made));
    assert!(sessions.find(&made.token, &here, &alice()).is_none());
    assert!(made.ended.is_cancelled() && sessions.is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_id_outlives_the_process_with_its_key_and_all_that_was_settled() {
    let sealer = Arc::new(Sealer::new([7; 32], Vec::new()));
    let here = route("here");
    let clock = Clock::system();
    let before = table_at(&sealer, 10, clock);
    let token = Arc::clone(&create(&before, &here).token);
    tokio::time::advance(Duration::from_secs(1)).await;
    let after = table_at(&sealer, 10, clock);
    let found = after.find(&token, &here, &alice()).expect("it is taken up again");
    assert_eq!(found.terms.upstream, terms(&here).upstream);
    assert_eq!((found.terms.version, found.terms.client), (terms(&here).version, terms(&here).client));
    assert!(after.end(&found));
    assert!(after.find(&token, &here, &alice()).is_none(), "ended is ended, though the id would open");
    let other_key = table_at(&Arc::new(Sealer::random()), 10, clock);
    assert!(other_key.find(&token, &here, &alice()).is_none());
}

#[tokio::test(start_paused = true)]
async fn there_is_room_for_so_many_and_no_more() {
    let sealer = Arc::new(Sealer::random());
    let sessions = table(&sealer, 2);
    let here = route("here");
    let first = create(&sessions, &here);
    let opening = sessions.reserve(None).expect("a second");
    assert_eq!(sessions.reserve(None).map(drop), Err(NoRoom::Full(2)), "the one being opened counts");
    drop(opening);
    create(&sessions, &here);
    assert_eq!(sessions.reserve(None).map(drop), Err(NoRoom::Full(2)));
    sessions.end(&first);
    assert!(sessions.reserve(None).is_ok());
    let long = Terms {
        upstream: SessionKey {
            id: Some("x".repeat(4096).into()),
            version: ProtocolVersion::LATEST_LEGACY,
            subject: None,
        },
        ..terms(&here)
    };
    let room = sessions.reserve(None).expect("there is room");
    assert!(matches!(sessions.create(room, long, &here.metrics), Err(NoRoom::TooLong)));
}

#[tokio::test(start_paused = true)]
async fn only_unused_sessions_are_idle() {
    let sealer = Arc::new(Sealer::random());
    let sessions = table(&sealer, 10);
    let here = route("here");
    let (unused, streaming, working) = (create(&sessions, &here), create(&sessions, &here), create(&sessions, &here));
    let stream = streaming.open_stream(Clock::system());
    working.live().unfinished = 1;
    tokio::time::advance(Duration::from_secs(59)).await;
    assert!(sessions.idle().is_empty());
    tokio::time::advance(Duration::from_secs(1)).await;
    let idle: Vec<SessionNumber> = sessions.idle().iter().map(|session| session.number).collect();
    assert_eq!(idle, [unused.number]);
    drop(stream);
    working.live().unfinished = 0;
    tokio::time::advance(Duration::from_secs(61)).await;
    assert_eq!(sessions.idle().len(), 3);
}

#[tokio::test]
async fn who_is_forgotten_is_served_with_what_they_showed_at_first() {
    let here = Route { subjects: Some(crate::gateway::subjects::Subjects::default()), ..route("here") };
    let token = |text: &'static str| Arc::new(SubjectToken::new(http::HeaderValue::from_static(text)));
    let (first, newer) = (token("Bearer first"), token("Bearer newer"));
    let sessions = table(&Arc::new(Sealer::random()), 10);
    let upstream = Nowhere.stateless().on_behalf_of(Some(&first));
    let session = sessions.unlisted(Terms { upstream, ..terms(&here) }, None);
    assert_eq!(here.key_of(&session).subject, Some(first));
    here.subjects.as_ref().unwrap().note(alice().digest(), Some(&newer));
    assert_eq!(here.key_of(&session).subject, Some(newer));
}
