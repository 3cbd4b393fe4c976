//! taskgate: MCP tasks for MCP servers that have none.

pub mod cli;
pub mod client;
pub mod clock;
pub mod demo;
pub mod jobs;
pub mod jsonrpc;
pub mod mcp;
pub mod sse;
pub mod upstream;
