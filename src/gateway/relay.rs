//! The bodies that carry answers to clients: an upstream's bytes as they come, or a channel of events.
//!
//! Events that are ready together leave together; a lone one leaves at once. A silent stream is kept warm. A body that
//! its client drops does not take the upstream's call with it.

mod answered;
mod detached;
mod event_stream;
mod gather;
mod plan;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::BodyExt;
use tokio::sync::mpsc;
use tokio::time::{Instant, Sleep};
use tokio_util::sync::DropGuard;

use crate::jsonrpc;
use crate::sse::{self, Event, Framer};
use crate::upstream::messages::Messages;
use crate::upstream::{Body, Error, Reply};

use super::call::Answer;
use super::rejection::{Chain, Fault, Kind};

use answered::{Last, answers, chunk_answers, is_response};
pub(super) use detached::{Detached, Waited};
pub(super) use event_stream::EventStream;
use plan::Look;
pub(super) use plan::{BEFORE_ID, Begun, Minted, Places, Plan, Rewrite, Rewritten, Sending};

/// How long a stream may be silent before a comment is sent, and how long an upstream may take to start its answer
/// before the gateway starts one.
pub const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Events that have to be joined, and follow others within this time, leave in one write; one that follows none leaves at once.
const BURST: Duration = Duration::from_millis(1);
/// As much as is joined into one write.
const JOINED: usize = 64 * 1024;

enum Source {
    /// No answer yet.
    Waiting(Sending),
    /// A JSON body that is passed on as it is.
    Raw(Body),
    /// A JSON body for one event of a stream that has begun.
    Whole(Messages),
    /// A stream of events.
    Events(Body, Framer),
    /// Messages.
    Channel(mpsc::Receiver<Bytes>),
    Ended,
}

/// What a client that loses the stream can come back for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rest {
    /// Nothing that is known of.
    None,
    /// What the upstream keeps: it gave event ids.
    Kept,
    /// The same, and this is what one came back for.
    This,
}

/// The body of the answer to one plain call.
pub(super) struct Relay {
    source: Source,
    plan: Option<Plan>,
    out: BytesMut,
    /// As much of `out` was there before others were let run.
    seen: usize,
    /// When something was last written.
    written: Option<Instant>,
    /// They have yet to run.
    yielded: bool,
    /// What comes of a burst is joined by a job of its own.
    gathered: bool,
    /// The response was passed on.
    answered: bool,
    /// The last message that was passed on, which may be the response too.
    last: Last,
    rest: Rest,
    tick: Pin<Box<Sleep>>,
    silent: bool,
    /// Ends the job that gives the places back at the deadline.
    watch: Option<DropGuard>,
}

impl Relay {
    /// Passes on a JSON body as it is.
    #[must_use]
    pub(super) fn of_json(body: Body, plan: Plan) -> Self {
        Self::new(Source::Raw(body), plan)
    }

    /// Passes on a stream of events.
    #[must_use]
    pub(super) fn of_events(body: Body, plan: Plan) -> Self {
        let limit = plan.limit;
        Self::new(Source::Events(body, Framer::new(limit)), plan)
    }

    /// Passes on messages, of which the first is there already.
    #[must_use]
    pub(super) fn of_channel(first: &Bytes, channel: mpsc::Receiver<Bytes>, plan: Plan) -> Self {
        let mut relay = Self::new(Source::Channel(channel), plan);
        relay.pass(first);
        relay
    }

    /// A stream of messages that are all there.
    #[must_use]
    pub(super) fn of_messages(messages: &[Bytes], last: &Bytes) -> Answer {
        let events: Vec<u8> =
            messages.iter().chain([last]).flat_map(|message| sse::write_event(None, message)).collect();
        let body = http_body_util::Full::new(Bytes::from(events)).map_err(|never| match never {});
        Answer::Events(body.boxed_unsync())
    }

    /// Passes on the rest of a stream that the client lost; which request it answers is not known here.
    #[must_use]
    pub(super) fn of_resumed(body: Body, plan: Plan) -> Self {
        let mut relay = Self::of_events(body, plan);
        relay.rest = Rest::This;
        relay
    }

    /// Starts a stream of events for an answer that is not there yet.
    #[must_use]
    pub(super) fn of_sending(sending: Sending, plan: Plan) -> Self {
        Self::new(Source::Waiting(sending), plan)
    }

    fn new(source: Source, mut plan: Plan) -> Self {
        let watch = plan.watch_places();
        let next = (Instant::now() + plan.keep_alive).min(plan.deadline);
        Self {
            source,
            plan: Some(plan),
            out: BytesMut::new(),
            seen: 0,
            written: None,
            yielded: false,
            gathered: false,
            answered: false,
            last: Last::default(),
            watch,
            rest: Rest::None,
            tick: Box::pin(tokio::time::sleep_until(next)),
            silent: true,
        }
    }

    /// Takes what the upstream has ready; says whether the source is at its end.
    fn fill(&mut self, cx: &mut Context<'_>, is_burst: bool) -> Poll<()> {
        while self.out.len() < JOINED {
            match &mut self.source {
                Source::Ended => return Poll::Ready(()),
                Source::Waiting(sending) => match std::task::ready!(sending.as_mut().poll(cx)) {
                    Ok((begun, places)) => self.begin(begun, places),
                    Err(kind) => self.fail(&kind),
                },
                Source::Raw(body) => match std::task::ready!(Pin::new(body).poll_frame(cx)) {
                    None => self.source = Source::Ended,
                    Some(Ok(frame)) => self.out.extend_from_slice(&frame.into_data().unwrap_or_default()),
                    Some(Err(error)) => self.lose(&error),
                },
                Source::Whole(messages) => {
                    let next = std::pin::pin!(messages.next()).poll(cx);
                    match std::task::ready!(next) {
                        Ok(Some(message)) => self.pass(&message),
                        Ok(None) => self.finish(),
                        Err(error) => self.lose(&error),
                    }
                }
                Source::Events(body, framer) => match framer.next_frame() {
                    Ok(Some(frame)) => self.pass_frame(frame),
                    Ok(None) => match std::task::ready!(Pin::new(body).poll_frame(cx)) {
                        None => self.finish(),
                        Some(Ok(frame)) => {
                            let chunk = frame.into_data().unwrap_or_default();
                            // More came as soon as others had run: events that are paced may be late, but not like this.
                            let comes_in_pieces = is_burst && self.seen > 0;
                            if comes_in_pieces && !self.gathered { self.gather(&chunk) } else { self.pass_chunk(chunk) }
                        }
                        Some(Err(error)) => self.lose(&error),
                    },
                    Err(error) => self.lose(&Error::TooLarge(error.limit)),
                },
                Source::Channel(channel) => match std::task::ready!(channel.poll_recv(cx)) {
                    Some(message) => self.pass(&message),
                    None => self.finish(),
                },
            }
        }
        Poll::Ready(())
    }

    /// The answer that a stream was begun for has come, in whatever form.
    fn begin(&mut self, begun: Begun, places: Places) {
        let Some(plan) = &mut self.plan else { return };
        plan.places = Some(places);
        self.watch = plan.watch_places();
        let limit = plan.limit;
        match begun {
            Begun::Whole(message) => {
                let members = jsonrpc::split_batch(&message).ok().filter(|_| plan.split_batches);
                match members {
                    Some(members) => members.iter().for_each(|member| {
                        self.pass(&Bytes::copy_from_slice(member.get().as_bytes()));
                    }),
                    None => self.pass(&message),
                }
                self.source = Source::Ended;
            }
            Begun::Pieces(pieces) => {
                self.pass(&pieces.concat().into());
                self.source = Source::Ended;
            }
            Begun::Json(body) => self.source = Source::Whole(Messages::of_reply(Reply::Json(body), limit)),
            Begun::Events(body) => self.source = Source::Events(body, Framer::new(limit)),
            Begun::Messages(first, channel) => {
                self.source = Source::Channel(channel);
                self.pass(&first);
            }
        }
    }

    /// Has the rest of a stream joined.
    fn gather(&mut self, chunk: &Bytes) {
        let Some(plan) = &self.plan else { return };
        if let Source::Events(body, framer) = std::mem::replace(&mut self.source, Source::Ended) {
            self.source = Source::Events(gather::gathered(&plan.gateway.jobs, chunk, body), framer);
            self.gathered = true;
        }
    }

    /// Passes on what came of a stream of events: unread, if there can be nothing in it to change.
    fn pass_chunk(&mut self, chunk: Bytes) {
        let (Some(plan), Source::Events(_, framer)) = (&self.plan, &mut self.source) else { return };
        let message = framer.pass_message(&chunk);
        if let Some(parts) = message.and_then(|data| plan.plain_progress(&chunk, data)) {
            self.out.reserve(parts.iter().map(|part| part.len()).sum());
            return parts.into_iter().for_each(|part| self.out.extend_from_slice(part));
        }
        let is_unchanged = plan.rewrite.is_none() && plan.minted.is_none() && !plan.split_batches && !plan.drop_priming;
        let passes = || message.map(|_| true).or_else(|| framer.pass(&chunk));
        let Some(has_messages) = is_unchanged.then(passes).flatten() else {
            // About as much will be passed on.
            self.out.reserve(chunk.len());
            return framer.push(chunk);
        };
        self.answered = self.answered || chunk_answers(&chunk, message, &plan.id);
        if has_messages && !self.answered {
            self.last.set(&chunk, true);
        }
        if !self.out.is_empty() {
            return self.out.extend_from_slice(&chunk);
        }
        match chunk.try_into_mut() {
            // It is nobody else's any more.
            Ok(chunk) => self.out = chunk,
            Err(chunk) => self.out.extend_from_slice(&chunk),
        }
    }

    /// Passes on one event, changed only where the client's version or the gateway's work asks for it.
    fn pass_frame(&mut self, frame: Bytes) {
        let Some(plan) = &self.plan else { return };
        let plain = plan.minted.as_ref().and_then(|_| sse::plain_message(&frame));
        if let Some(parts) = plain.and_then(|data| plan.plain_progress(&frame, data)) {
            return parts.into_iter().for_each(|part| self.out.extend_from_slice(part));
        }
        let event = Event::parse(&frame);
        // What is changed here would come unchanged from upstream, were the stream taken up again there.
        let may_resume = plan.rewrite.is_none() && plan.minted.is_none();
        if self.rest == Rest::None && may_resume && event.id.as_ref().is_some_and(|id| !id.is_empty()) {
            self.rest = Rest::Kept;
        }
        if !event.has_message() {
            if !may_resume && event.id.is_some() {
                return;
            }
            if !(plan.drop_priming && event.data.is_some()) {
                self.out.extend_from_slice(&sse::prefix_ids(frame, UPSTREAM_EVENT));
            }
            return;
        }
        let data = event.data.as_deref().unwrap_or_default();
        let is_answered = self.answered && plan.minted.is_some();
        let (rewritten, is_answer) = match plan.look(data) {
            Look::Withheld => return withheld(),
            Look::Response(_) if is_answered => return withheld(),
            Look::Response(message) => (Some(message), true),
            Look::Progress(message) => (Some(message), false),
            Look::Same => (None, false),
        };
        let is_array = data.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'[');
        let id = event.id.as_deref().filter(|_| may_resume).map(|id| format!("{UPSTREAM_EVENT}{id}"));
        if let Some(message) = rewritten {
            sse::push_event(&mut self.out, id.as_deref(), &message);
            self.answered |= is_answer;
        } else if plan.split_batches && is_array {
            let members = jsonrpc::split_batch(data).unwrap_or_default();
            for member in members {
                let Some(message) = plan.rewritten(Bytes::copy_from_slice(member.get().as_bytes())) else {
                    withheld();
                    continue;
                };
                self.out.extend_from_slice(&sse::write_event(id.as_deref(), &message));
                self.answered |= is_response(&message, &plan.id);
                self.last.set(&message, false);
            }
        } else {
            self.answered = self.answered || answers(data, &plan.id);
            self.last.set(data, false);
            let unchanged =
                if may_resume { sse::prefix_ids(frame.clone(), UPSTREAM_EVENT) } else { sse::write_event(None, data) };
            self.out.extend_from_slice(&unchanged);
        }
    }

    /// Passes on one message as an event.
    fn pass(&mut self, message: &Bytes) {
        if self.plan.as_ref().is_some_and(|plan| plan.split_batches)
            && let Ok(members) = jsonrpc::split_batch(message)
        {
            return members.iter().for_each(|member| self.pass(&Bytes::copy_from_slice(member.get().as_bytes())));
        }
        let is_answered = self.answered && self.plan.as_ref().is_some_and(|plan| plan.minted.is_some());
        let rewritten = match self.plan.as_ref().map_or(Look::Same, |plan| plan.look(message)) {
            Look::Withheld => return withheld(),
            Look::Response(_) if is_answered => return withheld(),
            Look::Response(message) | Look::Progress(message) => Some(message),
            Look::Same => None,
        };
        let message = rewritten.as_ref().unwrap_or(message);
        self.out.extend_from_slice(&sse::write_event(None, message));
        self.answered = self.answered || self.plan.as_ref().is_some_and(|plan| answers(message, &plan.id));
        self.last.set(message, false);
    }

    /// The upstream's stream has ended: if that was not the response, and nothing can be resumed, the client must hear
    /// that nothing more will come.
    fn finish(&mut self) {
        self.source = Source::Ended;
        if self.rest == Rest::None && !self.is_answered() {
            self.fail(&Kind::Fault(Fault::OutcomeUnknown));
        }
    }

    /// Whether the response has been passed on.
    fn is_answered(&self) -> bool {
        self.answered || self.plan.as_ref().is_none_or(|plan| self.last.answers(&plan.id))
    }

    /// The connection broke.
    fn lose(&mut self, error: &Error) {
        tracing::warn!(error = %Chain(error), "the upstream's answer broke off");
        let answered = self.is_answered();
        match error {
            // What can be resumed may still come; what broke the protocol would break it again.
            Error::Lost(_) | Error::Connect(_) => self.finish(),
            _ if answered => self.source = Source::Ended,
            other => self.fail(&Kind::Fault(Fault::from(other))),
        }
    }

    fn poll_deadline(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            std::task::ready!(self.tick.as_mut().poll(cx));
            match &self.plan {
                Some(plan) if Instant::now() < plan.deadline => self.tick.as_mut().reset(plan.deadline),
                _ => return Poll::Ready(()),
            }
        }
    }

    fn is_late(&self, now: Instant) -> bool {
        let is_over = matches!(self.source, Source::Ended);
        !is_over && self.plan.as_ref().is_some_and(|plan| now >= plan.deadline)
    }

    /// Ends the answer because its time is up.
    fn time_out(&mut self) {
        if self.is_answered() {
            // The upstream only left the stream open.
            self.source = Source::Ended;
            return;
        }
        let fault = self.plan.as_mut().map(Plan::time_out);
        fault.into_iter().for_each(|fault| self.fail(&Kind::Fault(fault)));
    }

    /// Ends the stream with an error for the request.
    fn fail(&mut self, kind: &Kind) {
        self.source = Source::Ended;
        // Which request a resumed stream answers is not known here.
        if let Some(plan) = self.plan.as_ref().filter(|plan| self.rest != Rest::This && !plan.cancelled.is_unwanted()) {
            let error = match kind {
                Kind::Upstream { error, .. } => jsonrpc::raw_error_response(Some(&plan.id), error),
                other => jsonrpc::error_response(Some(&plan.id), &other.to_error()),
            };
            self.out.extend_from_slice(&sse::write_event(None, &error));
        }
    }
}

/// Why an upstream is told to stop when a stateless client goes away.
const GONE: &str = "the client went away";

fn withheld() {
    tracing::warn!(
        "left out of an answer: a request, which the upstream's protocol version does not know, or what answers nobody"
    );
}

/// Before the ids of events that are the upstream's: they are resumed there.
pub(super) const UPSTREAM_EVENT: &str = "u.";

impl HttpBody for Relay {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let this = &mut *self;
        // hyper asks a second time at once, before anybody else can have run.
        if std::mem::take(&mut this.yielded) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        if this.plan.as_ref().is_some_and(|plan| plan.cancelled.poll(cx)) {
            // 2025-11-25 cancellation, "Behavior Requirements": no response is sent for a cancelled request.
            this.source = Source::Ended;
        }
        // Also for an upstream that is never silent.
        let now = Instant::now();
        let is_late = this.is_late(now);
        // A JSON body that breaks off must not look complete.
        if let Source::Raw(body) = &mut this.source {
            let frame = match Pin::new(body).poll_frame(cx) {
                Poll::Ready(frame) if !is_late => frame,
                polled => {
                    if polled.is_pending() {
                        std::task::ready!(this.poll_deadline(cx));
                    }
                    this.time_out();
                    Some(Err(Error::Lost("its answer did not end in time".into())))
                }
            };
            if !matches!(frame, Some(Ok(_))) {
                this.source = Source::Ended;
                this.plan = None;
            }
            return Poll::Ready(frame);
        }
        if is_late {
            this.time_out();
        }
        let needs_joining = this.plan.as_ref().is_some_and(|plan| plan.needs_joining);
        let is_burst = needs_joining && this.written.is_some_and(|written| now - written < BURST);
        let filled = this.fill(cx, is_burst);
        let is_over = matches!(this.source, Source::Ended);
        if !this.out.is_empty() {
            // Whoever reads from the upstream hands over one piece at a time, and has to run before there can be more.
            let may_be_more = is_burst && !this.gathered && this.seen < this.out.len();
            if filled.is_pending() && may_be_more {
                (this.seen, this.yielded) = (this.out.len(), true);
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            (this.seen, this.written) = (0, Some(now));
            this.silent = false;
            return Poll::Ready(Some(Ok(Frame::data(this.out.split().freeze()))));
        }
        if is_over {
            this.plan = None;
            return Poll::Ready(None);
        }
        std::task::ready!(this.tick.as_mut().poll(cx));
        let (deadline, keep_alive) =
            this.plan.as_ref().map_or((now, KEEP_ALIVE), |plan| (plan.deadline, plan.keep_alive));
        if now >= deadline {
            this.time_out();
            let rest = this.out.split().freeze();
            return Poll::Ready((!rest.is_empty()).then_some(Ok(Frame::data(rest))));
        }
        this.tick.as_mut().reset((now + keep_alive).min(deadline));
        let was_silent = std::mem::replace(&mut this.silent, true);
        cx.waker().wake_by_ref();
        if was_silent { Poll::Ready(Some(Ok(Frame::data(sse::KEEP_ALIVE)))) } else { Poll::Pending }
    }

    fn size_hint(&self) -> SizeHint {
        if let Source::Raw(body) = &self.source { body.size_hint() } else { SizeHint::default() }
    }

    fn is_end_stream(&self) -> bool {
        match &self.source {
            Source::Raw(body) => body.is_end_stream(),
            Source::Ended => self.out.is_empty(),
            _ => false,
        }
    }
}

impl Drop for Relay {
    /// 2025-11-25 transports, "Sending Messages to the Server" 7: a disconnect is not a cancel. What can't be resumed
    /// is read to its end, so that the upstream is not told otherwise.
    fn drop(&mut self) {
        let source = std::mem::replace(&mut self.source, Source::Ended);
        let Some(mut plan) = self.plan.take() else { return };
        if matches!(source, Source::Ended) || self.rest != Rest::None {
            return;
        }
        if plan.is_stateless {
            plan.cancel_upstream(GONE);
            return;
        }
        let gateway = Arc::clone(&plan.gateway);
        gateway.jobs.spawn("drain", drain(source, plan, self.watch.take()));
    }
}

async fn drain(source: Source, mut plan: Plan, watch: Option<DropGuard>) {
    let reading = async {
        let mut kept = None;
        let begun = match source {
            Source::Waiting(sending) => match sending.await {
                Ok((begun, places)) => {
                    kept.replace(places);
                    begun
                }
                Err(_) => return,
            },
            Source::Raw(body) => Begun::Json(body),
            Source::Events(body, _) => Begun::Events(body),
            Source::Channel(channel) => Begun::Messages(Bytes::new(), channel),
            Source::Whole(mut messages) => return while let Ok(Some(_)) = messages.next().await {},
            Source::Ended => return,
        };
        match begun {
            Begun::Whole(_) | Begun::Pieces(_) => {}
            Begun::Json(mut body) | Begun::Events(mut body) => while let Some(Ok(_)) = body.frame().await {},
            Begun::Messages(_, mut channel) => while channel.recv().await.is_some() {},
        }
    };
    let cancelled = std::future::poll_fn(|cx| if plan.cancelled.poll(cx) { Poll::Ready(()) } else { Poll::Pending });
    let is_late = tokio::select! {
        () = reading => false,
        () = cancelled => false,
        () = plan.gateway.jobs.stopping().cancelled() => false,
        () = tokio::time::sleep_until(plan.deadline) => true,
    };
    if is_late {
        plan.time_out();
    }
    drop(watch);
}

macro_rules! opaque_debug {
    ($($type:ident),*) => {$(
        impl std::fmt::Debug for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($type)).finish_non_exhaustive()
            }
        }
    )*};
}
opaque_debug!(Begun, Plan, Relay, Detached, Waited, EventStream);
