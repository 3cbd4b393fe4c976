//! Towards clients: sockets, HTTP, and the form of every answer. What a message means is the gateway's business.

pub mod cors;
pub mod forwarded;
pub mod headers;
pub mod http;
pub mod origin;
pub mod patience;
mod readers;
pub mod server;
mod subject;
pub mod well_known;
