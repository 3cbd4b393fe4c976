//! The scripts; what each takes and gives stands at its top.

use crate::hub::Script;

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
    pub(super) fn new() -> Self {
        let of_tenant = |body| Script::new(&[include_str!("lib.lua"), body]);
        let always = |body| Script::always(&[include_str!("lib.lua"), body]);
        Self {
            create: of_tenant(include_str!("create.lua")),
            take_back: always(include_str!("take_back.lua")),
            read: of_tenant(include_str!("read.lua")),
            peek: of_tenant(include_str!("peek.lua")),
            outcome: of_tenant(include_str!("outcome.lua")),
            note_read: always(include_str!("note_read.lua")),
            note_trail: always(include_str!("note_trail.lua")),
            replace: always(include_str!("replace.lua")),
            take_over: always(include_str!("take_over.lua")),
            own: always(include_str!("own.lua")),
            take_strays: always(include_str!("take_strays.lua")),
            purge: always(include_str!("purge.lua")),
            list: of_tenant(include_str!("list.lua")),
            usage: of_tenant(include_str!("usage.lua")),
            index: Script::always(&[include_str!("index.lua")]),
            claim: Script::always(&[include_str!("claim.lua")]),
            settle: Script::always(&[include_str!("settle.lua")]),
            holders: Script::new(&[include_str!("holders.lua")]),
            drained: Script::always(&[include_str!("drained.lua")]),
            sizes: Script::new(&[include_str!("sizes.lua")]),
        }
    }
}
