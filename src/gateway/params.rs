//! The members of `params` that decide what is done with a request, read in one pass with all others left unread.

use serde::Deserialize;

use crate::jsonrpc::{self, Defect, Object, Raw, present};
use crate::mcp::RELATED_TASK_WORD;

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

    fn scan(text: &'a str) -> Option<Self> {
        let mut read = Self::default();
        let is_whole = jsonrpc::members(text, |name, value| {
            let member = match name {
                "_meta" => &mut read.meta,
                "name" => &mut read.name,
                "uri" => &mut read.uri,
                "taskId" => &mut read.task_id,
                "protocolVersion" => &mut read.protocol_version,
                "task" => &mut read.task,
                "arguments" => &mut read.arguments,
                "cursor" => &mut read.cursor,
                "requestState" => &mut read.request_state,
                "inputResponses" => &mut read.input_responses,
                _ => return true,
            };
            member.replace(value).is_none()
        });
        is_whole.then_some(read)
    }

    /// The progress token as JSON text.
    pub(super) fn progress_token(&self) -> Option<Box<str>> {
        let meta = self.meta?.get();
        if !meta.contains("progressToken") {
            return None;
        }
        Object::parse(meta).ok()?.get("progressToken").map(Into::into)
    }

    /// The same where it stands in the message; `None` where more than one does.
    pub(super) fn only_progress_token(&self) -> Option<&'a str> {
        let meta = Object::parse(self.meta?.get()).ok()?;
        if meta.repeats("progressToken") { None } else { meta.original("progressToken") }
    }

    /// Whether there is anything that an upstream must not see (design: invariant 8).
    pub(super) fn speaks_of_tasks(&self) -> bool {
        self.task.is_some() || self.meta.is_some_and(|meta| meta.get().contains(RELATED_TASK_WORD))
    }
}
