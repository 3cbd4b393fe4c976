//! The scripts; what each takes and gives stands at its top.

use crate::hub::{LONG_COMMAND, Script};

/// All of them.
#[derive(Debug)]
pub(super) struct Scripts {
    pub(super) create: Script,
    pub(super) take_back: Script,
    pub(super) read: Script,
    pub(super) peek: Script,
    pub(super) outcome: Script,
    pub(super) note_read: Script,
    pub(super) note_trail: Script,
    pub(super) replace: Script,
    pub(super) take_over: Script,
    pub(super) own: Script,
    pub(super) take_strays: Script,
    pub(super) purge: Script,
    pub(super) list: Script,
    pub(super) usage: Script,
    pub(super) index: Script,
    pub(super) claim: Script,
    pub(super) settle: Script,
    pub(super) holders: Script,
    pub(super) drained: Script,
    pub(super) sizes: Script,
}

impl Scripts {
    /// The scripts; each begins with `prelude`, which is nothing but where a test looks at what they do.
    pub(super) fn new(prelude: &str) -> Self {
        let of_tenant = |body| Script::new(&[prelude, include_str!("lib.lua"), body]);
        let always = |body| Script::always(&[prelude, include_str!("lib.lua"), body]);
        let beside = |body| Script::always(&[prelude, body]);
        Self {
            create: of_tenant(include_str!("create.lua")),
            take_back: always(include_str!("take_back.lua")),
            read: of_tenant(include_str!("read.lua")),
            peek: of_tenant(include_str!("peek.lua")),
            outcome: of_tenant(include_str!("outcome.lua")),
            note_read: always(include_str!("note_read.lua")),
            note_trail: always(include_str!("note_trail.lua")),
            replace: always(include_str!("replace.lua")),
            own: always(include_str!("own.lua")).within(LONG_COMMAND),
            take_strays: always(include_str!("take_strays.lua")).within(LONG_COMMAND),
            take_over: always(include_str!("take_over.lua")).within(LONG_COMMAND),
            purge: always(include_str!("purge.lua")).within(LONG_COMMAND),
            list: of_tenant(include_str!("list.lua")).within(LONG_COMMAND),
            usage: of_tenant(include_str!("usage.lua")),
            index: beside(include_str!("index.lua")),
            claim: beside(include_str!("claim.lua")),
            settle: beside(include_str!("settle.lua")),
            holders: Script::new(&[prelude, include_str!("holders.lua")]),
            drained: beside(include_str!("drained.lua")),
            sizes: Script::new(&[prelude, include_str!("sizes.lua")]),
        }
    }
}
