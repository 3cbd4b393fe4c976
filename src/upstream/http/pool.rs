//! Connections to a server without TLS, each carried on by whoever waits for what comes on it.
//!
//! A client that carries each on in a job of its own hands requests over to that job, and heads and pieces of bodies back.
//! Here they stay in one job. Nobody carries on an idle connection: whether its server has closed it shows when it is next
//! used, before anything is sent.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker, ready};

use bytes::Bytes;
use futures_util::task::AtomicWaker;
use http::{Request, Response, Uri};
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::TrySendError;
use hyper::client::conn::http1::{Connection, SendRequest, handshake};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::task::coop::{poll_proceed, unconstrained};
use tokio::time::Instant;
use tower_service::Service;

use crate::jobs::Jobs;
use crate::upstream::Error;

use super::{IDLE_LIMIT, MOST_IDLE};

/// Of an answer that is dropped, so many pieces are read and thrown away to find its end.
const MOST_UNREAD: usize = 2;

/// What is sent on one.
pub(super) type Sent = Request<Full<Bytes>>;

/// Connections to one server, for those who run on one thread.
#[derive(Debug)]
pub(super) struct Pool {
    connector: HttpConnector,
    url: Uri,
    jobs: Jobs,
    idle: Mutex<Idle>,
}

#[derive(Debug, Default)]
struct Idle {
    /// Since when. The one that was used last is the last.
    connections: VecDeque<(Instant, Pooled)>,
    /// A job drops those that nobody uses.
    is_tidied: bool,
}

impl Pool {
    pub(super) fn new(connector: HttpConnector, url: Uri, jobs: Jobs) -> Arc<Self> {
        Arc::new(Self { connector, url, jobs, idle: Mutex::default() })
    }

    /// Sends a request, and waits for the head of its answer. Dropping either closes the connection.
    ///
    /// # Errors
    /// [`Error::Connect`] when nothing was sent, [`Error::Lost`].
    pub(super) async fn request(self: &Arc<Self>, mut request: Box<Sent>) -> Result<Response<Arriving>, Error> {
        loop {
            let (pooled, is_used) = match self.take() {
                Some(pooled) => (pooled, true),
                // Boxed: every request would have room for it.
                None => (Box::pin(self.connect()).await?, false),
            };
            match self.exchange(pooled, request).await {
                Ok(response) => return Ok(response),
                // The server has closed it meanwhile, and was sent nothing.
                Err(mut error) => match error.take_message() {
                    Some(unsent) if is_used => request = Box::new(unsent),
                    Some(_) => return Err(Error::Connect(error.into_error().into())),
                    None => return Err(Error::Lost(error.into_error().into())),
                },
            }
        }
    }

    async fn connect(&self) -> Result<Pooled, Error> {
        let socket =
            self.connector.clone().call(self.url.clone()).await.map_err(|error| Error::Connect(error.into()))?;
        let (sender, connection) = handshake(socket).await.map_err(|error| Error::Connect(error.into()))?;
        let bell = Arc::new(Bell::default());
        let waker = Arc::clone(&bell).into();
        Ok(Pooled { sender, connection: Box::new(connection), bell, waker, is_waited_for: false })
    }

    async fn exchange(
        self: &Arc<Self>,
        mut pooled: Pooled,
        request: Box<Sent>,
    ) -> Result<Response<Arriving>, TrySendError<Sent>> {
        // Without a budget, since it could not wake anybody for the next one.
        let mut answer = pin!(unconstrained(pooled.sender.try_send_request(*request)));
        let mut pooled = Some(pooled);
        let response = poll_fn(|cx| Pooled::poll(&mut pooled, cx, false, |cx| answer.as_mut().poll(cx))).await?;
        Ok(response.map(|incoming| {
            let mut arriving = Arriving { incoming, may_be_here: true, pooled, pool: Some(Arc::clone(self)) };
            // Most answers came with their heads.
            arriving.give_back();
            arriving
        }))
    }

    fn idle(&self) -> MutexGuard<'_, Idle> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> Option<Pooled> {
        let (since, pooled) = self.idle().connections.pop_back()?;
        (since.elapsed() < IDLE_LIMIT).then_some(pooled)
    }

    fn give_back(self: &Arc<Self>, pooled: Pooled) {
        let mut idle = self.idle();
        if idle.connections.len() >= MOST_IDLE {
            idle.connections.pop_front();
        }
        idle.connections.push_back((Instant::now(), pooled));
        if !idle.is_tidied {
            // What is dropped with its runtime finds none.
            if Handle::try_current().is_err() {
                return idle.connections.clear();
            }
            idle.is_tidied = true;
            drop(idle);
            self.jobs.spawn("idle connections", tidy(Arc::downgrade(self), self.jobs.clone()));
        }
    }

    /// Drops those that were idle for too long, and says when the next one will have been.
    fn drop_old(&self) -> Option<Instant> {
        let (now, mut idle) = (Instant::now(), self.idle());
        while let Some((since, _)) = idle.connections.front() {
            let over = *since + IDLE_LIMIT;
            if over > now {
                return Some(over);
            }
            idle.connections.pop_front();
        }
        idle.is_tidied = false;
        None
    }
}

/// Drops connections that nobody uses until there are none.
async fn tidy(pool: Weak<Pool>, jobs: Jobs) {
    while let Some(next) = pool.upgrade().and_then(|pool| pool.drop_old()) {
        tokio::select! {
            () = tokio::time::sleep_until(next) => {}
            () = jobs.stopping().cancelled() => return,
        }
    }
}

/// One connection.
#[derive(Debug)]
struct Pooled {
    sender: SendRequest<Full<Bytes>>,
    connection: Box<Connection<TokioIo<TcpStream>, Full<Bytes>>>,
    bell: Arc<Bell>,
    /// The bell's.
    waker: Waker,
    /// There was nothing when it was last polled, and the bell had not rung since.
    is_waited_for: bool,
}

impl Pooled {
    /// Polls for what only the connection makes ready, and carries that on while there is nothing. One that has ended is dropped.
    /// Before the bell has rung there is nothing new: hyper asks for a body three times for each piece that goes out.
    fn poll<T>(
        pooled: &mut Option<Self>,
        cx: &mut Context<'_>,
        may_be_here: bool,
        mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        let Some(carried) = pooled else { return poll(cx) };
        if carried.is_waited_for {
            if !carried.bell.rings(cx) {
                return Poll::Pending;
            }
            carried.is_waited_for = false;
            carried.bell.hush();
        }
        let nobody = &mut Context::from_waker(Waker::noop());
        if may_be_here && let ready @ Poll::Ready(_) = poll(nobody) {
            return ready;
        }
        // What it was told to send, and what was taken from it, has rung.
        carried.bell.rang.store(false, Ordering::Relaxed);
        let connection = Pin::new(&mut *carried.connection);
        if connection.poll(&mut Context::from_waker(&carried.waker)).is_ready() {
            // What went wrong is told to whoever waits.
            *pooled = None;
            return poll(cx);
        }
        if let ready @ Poll::Ready(_) = poll(nobody) {
            return ready;
        }
        carried.is_waited_for = carried.bell.listen(cx);
        Poll::Pending
    }
}

/// What a connection rings when it can go on. Nobody hears it while the connection is carried on, or idle: taking what came
/// rings it as well, and would wake a job that is awake.
#[derive(Debug, Default)]
struct Bell {
    listener: AtomicWaker,
    rang: AtomicBool,
}

impl Bell {
    /// Nobody listens any more.
    fn hush(&self) {
        drop(self.listener.take());
    }

    /// Whether it has rung since somebody listens; if not, the one who asks is who listens now.
    fn rings(&self, cx: &Context<'_>) -> bool {
        self.listener.register(cx.waker());
        self.rang.load(Ordering::Acquire)
    }

    /// Wakes the listener at once where it has rung meanwhile, and says whether it has not.
    fn listen(&self, cx: &Context<'_>) -> bool {
        let rang = self.rings(cx);
        if rang {
            self.hush();
            cx.waker().wake_by_ref();
        }
        !rang
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.rang.store(true, Ordering::Release);
        self.listener.wake();
    }
}

/// The body of an answer, with the connection on which it comes until all of it is here.
#[derive(Debug)]
pub(super) struct Arriving {
    incoming: Incoming,
    /// A first piece may have come with the head. Of the others, one comes each time that the connection is carried on.
    may_be_here: bool,
    pooled: Option<Pooled>,
    /// Where the connection is from.
    pool: Option<Arc<Pool>>,
}

impl Arriving {
    /// Gives the connection back if the answer needs it no more.
    fn give_back(&mut self) {
        if let (Some(pooled), Some(pool)) = (self.pooled.take_if(|pooled| pooled.sender.is_ready()), &self.pool) {
            pool.give_back(pooled);
        }
    }
}

impl From<Incoming> for Arriving {
    /// The body of an answer on a connection that has a job of its own.
    fn from(incoming: Incoming) -> Self {
        Self { incoming, may_be_here: true, pooled: None, pool: None }
    }
}

impl Drop for Arriving {
    /// Of an answer that nobody reads to its end, the end may be here.
    fn drop(&mut self) {
        for _ in 0..MOST_UNREAD {
            let nobody = &mut Context::from_waker(Waker::noop());
            if self.pooled.is_none() || !matches!(Pin::new(&mut *self).poll_frame(nobody), Poll::Ready(Some(Ok(_)))) {
                return;
            }
        }
    }
}

impl HttpBody for Arriving {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let Self { incoming, may_be_here, pooled, .. } = &mut *self;
        // One read of the socket may hold thousands of pieces, and whoever takes them all in one turn stops the clock of a thread.
        let budget = ready!(poll_proceed(cx));
        let frame = ready!(Pooled::poll(pooled, cx, *may_be_here, |cx| Pin::new(&mut *incoming).poll_frame(cx)));
        *may_be_here = false;
        budget.made_progress();
        self.give_back();
        Poll::Ready(frame.map(|frame| frame.map_err(|error| Error::Lost(error.into()))))
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

#[cfg(test)]
mod tests;
