//! The stdio transport over an in-memory pipe.

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream, Lines, ReadHalf, WriteHalf, split};
use tokio::task::JoinHandle;

use crate::jobs::Jobs;

use super::super::{Options, serve_stdio};
use super::everything;

pub(super) struct Pipe {
    pub input: WriteHalf<DuplexStream>,
    output: Lines<BufReader<ReadHalf<DuplexStream>>>,
    server: JoinHandle<std::io::Result<()>>,
}

impl Pipe {
    fn new() -> Self {
        Self::with(Options::default())
    }

    pub(super) fn with(options: Options) -> Self {
        let (ours, theirs) = tokio::io::duplex(1024);
        let (read, write) = split(theirs);
        let server = Jobs::default().spawn("stdio", serve_stdio(read, write, options));
        let (read, input) = split(ours);
        Self { input, output: BufReader::new(read).lines(), server }
    }

    async fn open() -> Self {
        let mut pipe = Self::new();
        let params = json!({"protocolVersion": "2025-11-25", "capabilities": everything()});
        pipe.send(&json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params})).await;
        assert_eq!(pipe.next().await["result"]["protocolVersion"], "2025-11-25");
        pipe.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"})).await;
        pipe
    }

    pub(super) async fn send(&mut self, message: &Value) {
        self.line(&message.to_string()).await;
    }

    async fn line(&mut self, line: &str) {
        self.input.write_all(format!("{line}\n").as_bytes()).await.unwrap();
    }

    async fn call(&mut self, id: i64, tool: &str, arguments: Value) {
        let params = json!({"name": tool, "arguments": arguments, "_meta": {"progressToken": id}});
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params})).await;
    }

    async fn next_line(&mut self) -> String {
        self.output.next_line().await.unwrap().expect("the server closed its end")
    }

    pub(super) async fn next(&mut self) -> Value {
        serde_json::from_str(&self.next_line().await).unwrap()
    }
}

#[tokio::test]
async fn calls_run_side_by_side() {
    let mut pipe = Pipe::open().await;
    pipe.call(1, "ask", json!({})).await;
    let question = pipe.next().await;
    pipe.call(2, "report", json!({"seconds": 0, "sections": 1})).await;
    assert_eq!(pipe.next().await["params"]["progressToken"], 2);
    assert_eq!(pipe.next().await["id"], 2);
    let answer = json!({"action": "accept", "content": {"name": "Ada"}});
    pipe.send(&json!({"jsonrpc": "2.0", "id": question["id"], "result": answer})).await;
    assert_eq!(pipe.next().await["result"]["content"][0]["text"], "Hello, Ada");
    pipe.call(3, "hold", json!({})).await;
    pipe.send(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 3}})).await;
    pipe.call(4, "release", json!({})).await;
    assert_eq!(pipe.next().await["id"], 4);
    pipe.input.shutdown().await.unwrap();
    pipe.server.await.unwrap().unwrap();
}

#[tokio::test]
async fn nothing_is_served_before_initialize() {
    let mut pipe = Pipe::new();
    pipe.send(&json!({"jsonrpc": "2.0", "id": 1, "method": "ping"})).await;
    assert_eq!(pipe.next().await["result"], json!({}));
    pipe.send(&json!({"jsonrpc": "2.0", "id": 2, "method": "tools/list"})).await;
    assert_eq!(pipe.next().await["error"]["code"], -32600);
    pipe.send(&json!({"jsonrpc": "2.0", "id": 3, "method": "initialize", "params": {}})).await;
    assert_eq!(pipe.next().await["error"]["code"], -32602);
}

#[tokio::test]
async fn bad_lines_get_an_error_and_the_next_is_served() {
    let mut pipe = Pipe::open().await;
    for (line, code) in [("{", -32700), ("[]", -32600), ("nonsense", -32700), ("{\"jsonrpc\":\"2.0\"}", -32600)] {
        pipe.line(line).await;
        assert_eq!(pipe.next().await["error"]["code"], code, "{line}");
    }
    pipe.line("  ").await;
    pipe.call(1, "echo", json!({"text": "alive"})).await;
    assert_eq!(pipe.next().await["result"]["content"][0]["text"], "alive");
}

#[tokio::test]
async fn faults_of_pipes() {
    let mut pipe = Pipe::open().await;
    pipe.call(1, "fault", json!({"kind": "noise"})).await;
    assert!(serde_json::from_str::<Value>(&pipe.next_line().await).is_err());
    assert_eq!(pipe.next().await["method"], "notifications/progress");
    assert_eq!(pipe.next().await["id"], 1);
    pipe.call(2, "fault", json!({"kind": "silent"})).await;
    pipe.call(3, "fault", json!({"kind": "exit"})).await;
    assert_eq!(pipe.output.next_line().await.unwrap(), None);
    pipe.server.await.unwrap().unwrap();
}
