//! taskgate: MCP tasks for MCP servers that have none.

pub mod admin;
pub mod app;
pub mod cli;
pub mod client;
pub mod clock;
pub mod config;
pub mod demo;
pub mod downstream;
pub mod gateway;
pub mod jobs;
pub mod jsonrpc;
pub mod mcp;
pub mod metrics;
pub mod seal;
pub mod sse;
pub mod task;
pub mod tenant;
pub mod upstream;
