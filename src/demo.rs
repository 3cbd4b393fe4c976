//! What ships for a first try: a plain MCP server that knows nothing of tasks, which is the tests' fixture as well.

pub mod server;
