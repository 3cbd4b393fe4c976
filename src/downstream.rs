//! Towards clients: sockets, HTTP, and the form of every answer. What a message means is the gateway's business.

mod answer;
pub mod cors;
pub mod forwarded;
pub mod guard;
pub mod headers;
pub mod http;
pub mod origin;
mod passage;
pub mod passing;
pub mod patience;
mod readers;
mod seldom;
pub mod server;
mod subject;
pub mod well_known;
