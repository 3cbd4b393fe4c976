//! taskgate: MCP tasks for MCP servers that have none.
//!
//! A reverse proxy. Clients talk to it as to any MCP server; behind it are servers that know nothing of tasks. It holds
//! their slow calls and gives the clients a handle, progress, questions and a result that waits for them.
//!
//! This page is the map of the tree, from the bottom up. A module uses only what stands above it here;
//! `tests/tidy.rs` has the exact table. `ARCHITECTURE.md` says what holds everywhere, `docs/life-of-a-request.md` follows
//! one request through, and `docs/decisions/` has the reasons.
//!
//! | module | what it is |
//! |---|---|
//! | [`jsonrpc`] | the JSON-RPC envelope, parsed flat; payloads stay raw text. Pure |
//! | [`sse`] | server-sent events: cutting, reading, writing. Pure |
//! | [`clock`] | wall time that follows the runtime's clock |
//! | [`jobs`] | the only place where jobs start and stop |
//! | [`threads`] | the threads that serve connections, each with a runtime of its own |
//! | [`waits`] | sleeps that are used again, for what happens with every request |
//! | [`hub`] | the Redis server that replicas share: one connection, kept up |
//! | [`seal`] | sealed tokens: session ids, cursors, event ids |
//! | [`mcp`] | versions, methods, capabilities: the protocol's vocabulary. Pure |
//! | [`metrics`] | everything that is counted |
//! | [`oauth`] | OAuth as a client speaks it: documents, tokens |
//! | [`tls`] | certificates and keys from files, new ones while the process runs |
//! | [`tenant`] | who calls, how often they may, whose turn it is at an upstream |
//! | [`auth`] | from a request's credentials to its caller |
//! | [`task`] | the record, its state machine, the store, the ledger; how dialects show it |
//! | [`replica`] | the processes that share a store: who is alive, whose a session is, what they tell each other |
//! | [`upstream`] | towards servers: one trait, streamable HTTP and stdio |
//! | [`gateway`] | what a message means and where it goes |
//! | [`downstream`] | towards clients: sockets, HTTP, the form of every answer |
//! | [`admin`] | the operators' address |
//! | [`client`] | a small client, for `taskgate call`, the demo and the tests |
//! | [`demo`] | a server without tasks, to try the gateway on and to test it with |
//! | [`config`] | the configuration: every mistake in a file, or what it means |
//! | [`app`] | wires the modules together, starts and stops them |
//! | [`cli`] | the command line |

pub mod admin;
pub mod app;
pub mod auth;
pub mod cli;
pub mod client;
pub mod clock;
pub mod config;
pub mod demo;
pub mod downstream;
pub mod gateway;
pub mod hub;
pub mod jobs;
pub mod jsonrpc;
pub mod mcp;
pub mod metrics;
pub mod oauth;
pub mod replica;
pub mod seal;
pub mod sse;
pub mod task;
pub mod tenant;
pub mod threads;
pub mod tls;
pub mod upstream;
pub mod waits;
