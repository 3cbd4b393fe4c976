//! The words by which changes of tasks are told in the log.

use crate::task::{Ending, Event};

/// Of what an event is about.
pub(super) fn event_reason(event: &Event) -> &'static str {
    match event {
        Event::Start => "started",
        Event::Ask { .. } => "asked",
        Event::Claim { .. } => "claimed",
        Event::Release { .. } => "released",
        Event::Answer { .. } => "answered",
        Event::Settle { .. } => "settled",
        Event::Note(_) => "noted",
        Event::End(ending) => ending_reason(*ending),
    }
}

/// Of how a task ended.
pub(super) fn ending_reason(ending: Ending) -> &'static str {
    match ending {
        Ending::Returned { is_error: false } => "returned",
        Ending::Returned { is_error: true } => "tool_error",
        Ending::Errored => "error",
        Ending::Cancelled => "cancelled",
    }
}
