//! A request as it was read: the members that decide what is done with it, taken in one pass with all others left unread.

use std::borrow::Cow;

use bytes::Bytes;
use serde::Deserialize;

use crate::jsonrpc::{self, Defect, Id, Message, Object, Parsed, Raw, present};
use crate::mcp::envelope::{self, Claims, Envelope};
use crate::mcp::may_hold;
use crate::mcp::method::Method;
use crate::task::dialect::core;

/// What decides. A repeated one is refused: two readers could take different ones.
#[derive(Debug, Default, Clone, Copy, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Params<'a> {
    #[serde(borrow, default, rename = "_meta", deserialize_with = "present")]
    pub(super) meta: Option<Raw<'a>>,
    #[serde(borrow, default, deserialize_with = "present")]
    pub(super) name: Option<Raw<'a>>,
    #[serde(borrow, default, deserialize_with = "present")]
    pub(super) uri: Option<Raw<'a>>,
    #[serde(borrow, default, deserialize_with = "present")]
    pub(super) task_id: Option<Raw<'a>>,
    #[serde(borrow, default, deserialize_with = "present")]
    pub(super) protocol_version: Option<Raw<'a>>,
    #[serde(borrow, default, deserialize_with = "present")]
    pub(super) task: Option<Raw<'a>>,
    #[serde(borrow, default, deserialize_with = "present")]
    pub(super) arguments: Option<Raw<'a>>,
    #[serde(borrow, default, deserialize_with = "present")]
    pub(super) cursor: Option<Raw<'a>>,
    #[serde(borrow, default, deserialize_with = "present")]
    pub(super) request_state: Option<Raw<'a>>,
    #[serde(borrow, default, deserialize_with = "present")]
    pub(super) input_responses: Option<Raw<'a>>,
    #[serde(skip)]
    pub(super) whole: Option<Raw<'a>>,
    /// What stands in `meta`, where that was read with the message.
    #[serde(skip)]
    claims: Option<Claims<'a>>,
}

/// A request as it was read.
pub(super) struct Request<'a> {
    pub(super) id: Id,
    /// Its text where it stands in the body.
    pub(super) id_text: &'a str,
    /// The method as it is written.
    pub(super) name: Cow<'a, str>,
    pub(super) method: Method,
    pub(super) params: &'a Params<'a>,
    pub(super) body: &'a Bytes,
}

/// Reads a client's message, and what its `params` hold as far as that can be read in the same pass; also gives the text of
/// its id where it stands.
///
/// # Errors
/// As [`Message::parse`].
pub(super) fn read_message<'a>(
    body: &'a [u8],
    read: &mut Option<Params<'a>>,
) -> Result<(Message<'a>, Option<&'a str>), Defect> {
    let (mut params, mut claims) = (Params::default(), Claims::default());
    let parsed = Message::parse_along(body, &["params", "_meta"], |depth, name, value| match depth {
        1 => params.take(name, value),
        _ => claims.take(name, value),
    });
    let Parsed { message, id_text, is_along } = parsed?;
    params.claims = params.meta.filter(|meta| meta.get().starts_with('{')).map(|_| claims);
    *read = is_along.then_some(params);
    Ok((message, id_text))
}

impl<'a> Params<'a> {
    /// Reads a request's `params`. An array has none of these members and passes unread.
    pub(super) fn read(params: Raw<'a>) -> Result<Self, Defect> {
        if !params.get().starts_with('{') {
            return Ok(Self { whole: Some(params), ..Self::default() });
        }
        let read = match Self::scan(params.get()) {
            Some(read) => read,
            None => serde_json::from_str(params.get()).map_err(|error| Defect::Member(error.to_string()))?,
        };
        Ok(Self { whole: Some(params), ..read })
    }

    /// What these `params` hold; `read` is what of it was read with the message.
    ///
    /// # Errors
    /// As [`Params::read`].
    pub(super) fn of<'r>(whole: Option<Raw<'a>>, read: &'r mut Option<Self>) -> Result<&'r Self, Defect> {
        let params = match (whole, read.take()) {
            (Some(_), Some(read)) => Self { whole, ..read },
            (Some(whole), None) => Self::read(whole)?,
            (None, _) => Self::default(),
        };
        Ok(read.insert(params))
    }

    fn scan(text: &'a str) -> Option<Self> {
        let mut read = Self::default();
        jsonrpc::members(text, |name, value| read.take(name, value)).then_some(read)
    }

    /// Takes a member, whatever it is; `false` where it is a second one of its name.
    fn take(&mut self, name: &str, value: Raw<'a>) -> bool {
        let member = match name {
            "_meta" => &mut self.meta,
            "name" => &mut self.name,
            "uri" => &mut self.uri,
            "taskId" => &mut self.task_id,
            "protocolVersion" => &mut self.protocol_version,
            "task" => &mut self.task,
            "arguments" => &mut self.arguments,
            "cursor" => &mut self.cursor,
            "requestState" => &mut self.request_state,
            "inputResponses" => &mut self.input_responses,
            _ => return true,
        };
        member.replace(value).is_none()
    }

    /// What the request says of itself.
    ///
    /// # Errors
    /// As [`Envelope::read`].
    pub(super) fn envelope(&self) -> Result<Envelope<'a>, envelope::Defect> {
        self.claims.map_or_else(|| Envelope::read(self.meta), |claims| Envelope::of(&claims))
    }

    /// Whether a version is claimed, which selects the modern era.
    pub(super) fn is_claimed(&self) -> bool {
        self.claims.map_or_else(|| envelope::is_claimed(self.meta), |claims| claims.name_version())
    }

    /// The progress token as JSON text.
    pub(super) fn progress_token(&self) -> Option<Box<str>> {
        if let Some(claims) = &self.claims {
            return claims.progress_token().map(Into::into);
        }
        let meta = self.meta?.get();
        if !may_hold(meta, "progressToken") {
            return None;
        }
        Object::parse(meta).ok()?.get("progressToken").map(Into::into)
    }

    /// The same where it stands in the message; `None` where more than one does.
    pub(super) fn only_progress_token(&self) -> Option<&'a str> {
        if let Some(claims) = &self.claims {
            return claims.progress_token();
        }
        let meta = Object::parse(self.meta?.get()).ok()?;
        if meta.repeats("progressToken") { None } else { meta.original("progressToken") }
    }

    /// Whether there is anything that an upstream must not see (design: invariant 8).
    pub(super) fn speaks_of_tasks(&self) -> bool {
        let in_meta = || self.meta.is_some_and(|meta| core::has_related(meta.get()));
        self.task.is_some() || self.claims.map_or_else(in_meta, |claims| claims.name_task())
    }
}

#[cfg(test)]
mod tests;
