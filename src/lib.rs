//! taskgate: MCP tasks for MCP servers that have none.

pub mod config;
