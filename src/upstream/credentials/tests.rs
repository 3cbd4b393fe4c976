//! When tokens are asked for, renewed and dropped, on a clock that stands still.

use std::sync::atomic::{AtomicUsize, Ordering};

use http::StatusCode;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;

/// A token endpoint that gives `t1`, `t2`.. with that life in seconds, or nothing, and counts.
struct Endpoint {
    url: Uri,
    asked: Arc<AtomicUsize>,
    answers: Arc<std::sync::Mutex<Option<u64>>>,
    jobs: Jobs,
}

impl Endpoint {
    async fn start(life: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/token", listener.local_addr().unwrap()).parse().unwrap();
        let (asked, jobs) = (Arc::new(AtomicUsize::new(0)), Jobs::default());
        let answers = Arc::new(std::sync::Mutex::new(Some(life)));
        let (counted, says) = (Arc::clone(&asked), Arc::clone(&answers));
        jobs.spawn("endpoint", async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut request = vec![0; 4096];
                let _read = stream.read(&mut request).await;
                let number = counted.fetch_add(1, Ordering::SeqCst) + 1;
                let (status, body) = match *says.lock().unwrap() {
                    Some(life) => {
                        (200, format!(r#"{{"access_token":"t{number}","token_type":"Bearer","expires_in":{life}}}"#))
                    }
                    None => (400, r#"{"error":"invalid_client"}"#.to_owned()),
                };
                let head =
                    format!("HTTP/1.1 {status} x\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", body.len());
                let _sent = stream.write_all(format!("{head}{body}").as_bytes()).await;
            }
        });
        Self { url, asked, answers, jobs }
    }

    fn config(&self) -> Config {
        let client = Client { id: "gate".to_owned(), secret: Some("hush".into()), method: token::Method::Basic };
        Config { token_url: self.url.clone(), client, scope: None, resource: None, audience: None }
    }

    fn own(&self) -> Own {
        Own::new(self.config(), self.jobs.clone())
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }

    fn says(&self, life: Option<u64>) {
        *self.answers.lock().unwrap() = life;
    }

    /// Waits for the endpoint to be asked so often, with the clock standing still.
    async fn until_asked(&self, count: usize) {
        while self.asked() < count || self.jobs.running() > 1 {
            tokio::task::yield_now().await;
        }
    }
}

async fn shown(source: &dyn Credentials) -> String {
    let header = source.authorization(None).await.unwrap().unwrap();
    header.to_str().unwrap().to_owned()
}

fn refused<'a>(denied: &'a Denied, shown: Option<&'a HeaderValue>, attempt: u32) -> Refused<'a> {
    Refused { denied, shown, subject: None, attempt }
}

fn denied(status: StatusCode) -> Denied {
    Denied { status, challenges: Vec::new(), is_for_client: false }
}

async fn advance(seconds: u64) {
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(seconds)).await;
    tokio::time::resume();
}

#[test]
fn a_token_is_renewed_in_time() {
    let after = |life| renewed_after(Duration::from_secs(life)).as_secs();
    assert_eq!([after(3600), after(300), after(200), after(100), after(10), after(0)], [2880, 240, 140, 80, 8, 0]);
}

#[tokio::test]
async fn one_token_serves_all_until_it_is_due() {
    let endpoint = Endpoint::start(1000).await;
    let own = endpoint.own();
    let (one, other, third) = tokio::join!(shown(&own), shown(&own), shown(&own));
    assert_eq!([&*one, &*other, &*third], ["Bearer t1"; 3]);
    advance(799).await;
    assert_eq!((shown(&own).await.as_str(), endpoint.asked()), ("Bearer t1", 1));
    // Due: the old one serves until the new one is there.
    advance(2).await;
    assert_eq!(shown(&own).await, "Bearer t1");
    endpoint.until_asked(2).await;
    assert_eq!((shown(&own).await.as_str(), endpoint.asked()), ("Bearer t2", 2));
}

#[tokio::test]
async fn the_old_token_serves_until_it_ends_while_there_is_no_new_one() {
    let endpoint = Endpoint::start(1000).await;
    let own = endpoint.own();
    shown(&own).await;
    endpoint.says(None);
    advance(900).await;
    assert_eq!(shown(&own).await, "Bearer t1");
    endpoint.until_asked(2).await;
    // Not asked for every message.
    assert_eq!((shown(&own).await.as_str(), endpoint.asked()), ("Bearer t1", 2));
    advance(101).await;
    let error = own.authorization(None).await.unwrap_err();
    let Error::Credentials(source) = &error else { panic!("{error:?}") };
    assert!(source.to_string().contains("invalid_client") && !format!("{error:?}").contains("hush"), "{error:?}");
    assert!(own.authorization(None).await.is_err());
    assert_eq!(endpoint.asked(), 3);
    endpoint.says(Some(1000));
    advance(2).await;
    assert_eq!(shown(&own).await, "Bearer t4");
}

#[tokio::test]
async fn a_refused_token_is_dropped_once() {
    let endpoint = Endpoint::start(1000).await;
    let own = endpoint.own();
    let first = own.authorization(None).await.unwrap();
    let (unauthorized, forbidden) = (denied(StatusCode::UNAUTHORIZED), denied(StatusCode::FORBIDDEN));
    // It is new: another would be refused as well.
    assert!(!own.refused(&refused(&unauthorized, first.as_ref(), 1)).await.unwrap());
    advance(11).await;
    assert!(!own.refused(&refused(&forbidden, first.as_ref(), 1)).await.unwrap());
    assert!(!own.refused(&refused(&unauthorized, first.as_ref(), 2)).await.unwrap());
    assert!(own.refused(&refused(&unauthorized, first.as_ref(), 1)).await.unwrap());
    assert_eq!(shown(&own).await, "Bearer t2");
    // Whoever was refused with the old one takes the new one.
    assert!(own.refused(&refused(&unauthorized, first.as_ref(), 1)).await.unwrap());
    assert_eq!((shown(&own).await.as_str(), endpoint.asked()), ("Bearer t2", 2));
}

#[tokio::test]
async fn each_caller_has_a_token_of_their_own() {
    let endpoint = Endpoint::start(1000).await;
    let exchanged = Exchanged::new(endpoint.config(), endpoint.jobs.clone());
    let subject = |token: &str| Arc::new(SubjectToken::new(HeaderValue::from_str(token).unwrap()));
    let of = async |subject: &Arc<SubjectToken>| exchanged.authorization(Some(subject)).await.unwrap().unwrap();
    let (ann, bob) = (subject("Bearer ann"), subject("Bearer bob"));
    assert_eq!([of(&ann).await, of(&bob).await, of(&ann).await], ["Bearer t1", "Bearer t2", "Bearer t1"]);
    // However it is written, it is one token.
    for same in ["Bearer  ann", "bearer ann", "BEARER ann "] {
        assert_eq!(of(&subject(same)).await, "Bearer t1", "{same}");
    }
    for none in [None, Some(&subject("Basic ann"))] {
        assert!(matches!(exchanged.authorization(none).await, Err(Error::Credentials(_))));
    }
    assert_eq!(endpoint.asked(), 2);
    for number in 0..MANY {
        exchanged.authorization(Some(&subject(&format!("Basic {number}")))).await.unwrap_err();
    }
    assert!(!format!("{exchanged:?}").contains("ann"), "{exchanged:?}");
}

const MANY: usize = 100;
