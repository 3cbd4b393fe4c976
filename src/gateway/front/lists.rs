//! Lists of upstreams with sessions: a cursor may mean something only on the session that gave it out, so it is sealed
//! together with that session; where the session ends with the request, all pages become one.

use serde_json::value::RawValue;

use crate::gateway::Gateway;
use crate::gateway::rejection::{Fault, Kind};
use crate::jsonrpc::{Object, Raw, raw_string, string_value};
use crate::mcp::method::Method;
use crate::seal::{Purpose, Sealer};
use crate::task::{Holder, SessionNumber};

/// So many pages are read for one that is to be whole.
const MOST_PAGES: usize = 1000;
const BAD_CURSOR: &str = "The cursor is not one that was given out for this list, or not any more";

/// The member of the result that a list is in; `None` for what is no list.
pub(super) fn listed(method: Method) -> Option<&'static str> {
    match method {
        Method::ToolsList => Some("tools"),
        Method::PromptsList => Some("prompts"),
        Method::ResourcesList => Some("resources"),
        Method::ResourceTemplatesList => Some("resourceTemplates"),
        _ => None,
    }
}

/// A list in reading.
#[derive(Debug)]
pub(super) struct List {
    member: &'static str,
    method: Box<str>,
    principal: [u8; 16],
    /// The session that the client's cursor is of.
    session: Option<SessionNumber>,
    /// What was read before, where all pages become one.
    read: Vec<Box<str>>,
    pages: usize,
    bytes: usize,
    last_cursor: Option<Box<str>>,
}

/// What comes after a page.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Page {
    /// The answer: this result.
    Last(String),
    /// More pages are to be read, with these `params`.
    More(String),
}

impl List {
    /// A list, and its `params` for the upstream, with the upstream's own cursor.
    ///
    /// # Errors
    /// When the cursor is not one of these.
    pub(super) fn begin(
        gateway: &Gateway,
        member: &'static str,
        method: &str,
        principal: [u8; 16],
        (params, cursor): (&mut String, Option<Raw<'_>>),
    ) -> Result<Self, Kind> {
        let mut list = Self {
            member,
            method: method.into(),
            principal,
            session: None,
            read: Vec::new(),
            pages: 0,
            bytes: 0,
            last_cursor: None,
        };
        if let Some(cursor) = cursor {
            let opened = string_value(cursor.get()).and_then(|cursor| list.open(gateway, &cursor));
            let (session, cursor) = opened.ok_or(Kind::Params(BAD_CURSOR))?;
            list.session = Some(session);
            *params = with_cursor(params, &cursor);
        }
        Ok(list)
    }

    /// Whether this session can go on with it.
    ///
    /// # Errors
    /// When the cursor is another's.
    pub(super) fn check(&self, session: SessionNumber) -> Result<(), Kind> {
        match self.session {
            Some(theirs) if theirs != session => Err(Kind::Params(BAD_CURSOR)),
            _ => Ok(()),
        }
    }

    /// Whether nothing of it was read yet that a later page must go with.
    pub(super) fn may_begin_anew(&self) -> bool {
        self.session.is_none() && self.read.is_empty()
    }

    /// Takes a page that the upstream gave on a session. `is_kept`: the session will be there for the next.
    ///
    /// # Errors
    /// When the pages have no end, or are no pages.
    pub(super) fn take(
        &mut self,
        gateway: &Gateway,
        session: SessionNumber,
        is_kept: bool,
        (result, params, limit): (&str, &str, usize),
    ) -> Result<Page, Kind> {
        let mut page = Object::parse(result).map_err(|_| Fault::UpstreamProtocol)?;
        let cursor = page.get("nextCursor").filter(|cursor| *cursor != "null").map(str::to_owned);
        if is_kept {
            if let Some(cursor) = cursor {
                page.set("nextCursor", raw_string(&self.seal(gateway, session, &cursor)?));
            }
            return Ok(Page::Last(page.to_json()));
        }
        let items: Vec<&RawValue> =
            serde_json::from_str(page.get(self.member).unwrap_or("[]")).map_err(|_| Fault::UpstreamProtocol)?;
        self.pages += 1;
        self.bytes += result.len();
        if self.bytes > limit || self.pages > MOST_PAGES {
            return Err(Fault::UpstreamTooLarge.into());
        }
        self.read.extend(items.into_iter().map(|item| item.get().into()));
        match cursor {
            // A cursor that leads back to itself would lead there for ever.
            Some(cursor) if self.last_cursor.as_deref() != Some(&cursor) => {
                let params = with_cursor(params, &cursor);
                self.last_cursor = Some(cursor.into());
                Ok(Page::More(params))
            }
            _ => {
                let all = format!("[{}]", self.read.join(","));
                Ok(Page::Last(page.remove("nextCursor").set(self.member, all).to_json()))
            }
        }
    }

    /// An upstream's cursor (JSON text) for the client.
    fn seal(&self, gateway: &Gateway, session: SessionNumber, cursor: &str) -> Result<String, Kind> {
        let holder = gateway.home_of_calls().map_or("", Holder::as_str);
        let mut plain = self.principal.to_vec();
        plain.extend(session.to_be_bytes());
        plain.push(u8::try_from(holder.len()).unwrap_or(u8::MAX));
        plain.extend(holder.as_bytes());
        plain.extend(self.method.as_bytes());
        plain.push(0);
        plain.extend(cursor.as_bytes());
        let sealed = gateway.sealer.seal(Purpose::ListCursor, &plain);
        if gateway.sealer.open(Purpose::ListCursor, &sealed).is_none() {
            tracing::warn!("the upstream's cursor is too long to be carried");
            return Err(Fault::UpstreamProtocol.into());
        }
        Ok(sealed)
    }

    /// The session and the upstream's cursor (JSON text), if it was given out to this caller for this list. A session is
    /// one route's.
    fn open(&self, gateway: &Gateway, cursor: &str) -> Option<(SessionNumber, String)> {
        let plain = gateway.sealer.open(Purpose::ListCursor, cursor)?;
        let (principal, rest) = plain.split_first_chunk::<16>()?;
        let (session, rest) = rest.split_first_chunk::<16>()?;
        let (_holder, rest) = holder_of(rest)?;
        let cursor = rest.strip_prefix(self.method.as_bytes())?.strip_prefix(b"\0")?;
        let is_theirs = *principal == self.principal;
        let cursor = String::from_utf8(cursor.to_vec()).ok()?;
        is_theirs.then_some((SessionNumber::from_be_bytes(*session), cursor))
    }
}

/// The name of who has the session, and what comes after it.
fn holder_of(plain: &[u8]) -> Option<(&str, &[u8])> {
    let (length, rest) = plain.split_first()?;
    let (holder, rest) = rest.split_at_checked(usize::from(*length))?;
    Some((std::str::from_utf8(holder).ok()?, rest))
}

/// Which process has the session that a cursor is of, where the cursor says so.
pub(in crate::gateway) fn listed_at(sealer: &Sealer, cursor: &str) -> Option<Holder> {
    let plain = sealer.open(Purpose::ListCursor, cursor)?;
    let (holder, _) = holder_of(plain.get(32..)?)?;
    (!holder.is_empty()).then(|| Holder::from_text(holder))
}

fn with_cursor(params: &str, cursor: &str) -> String {
    let mut params = Object::parse(params).unwrap_or_default();
    params.set("cursor", cursor).to_json()
}
