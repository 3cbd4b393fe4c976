//! The front that modern clients see where a call must be held: translated for servers with sessions, or made a task when it
//! takes long.

pub(super) mod state;
