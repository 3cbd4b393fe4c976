//! What `tools/list` shows.

use super::Tool;

/// Every tool, in the order in which they are listed.
pub(in crate::demo::server) static TOOLS: [Tool; 20] = [
    Tool {
        name: "echo",
        description: "Returns the text",
        arguments: &[("text!", "string", "What to return")],
        read_only: true,
    },
    Tool {
        name: "report",
        description: "Writes a report, slowly, and tells how far it is",
        arguments: &[
            ("seconds", "number", "How long it takes; without it each section waits for a release"),
            ("sections", "integer", "How many sections it has (default 4)"),
        ],
        read_only: true,
    },
    Tool {
        name: "hold",
        description: "Waits for so long, or for a release; ends early when it is cancelled",
        arguments: &[("seconds", "number", "How long; without it until a release")],
        read_only: true,
    },
    Tool {
        name: "stubborn",
        description: "Waits as `hold` does, and takes no notice when it is cancelled",
        arguments: &[("seconds", "number", "How long; without it until a release")],
        read_only: false,
    },
    Tool {
        name: "release",
        description: "Lets held calls and the sections of reports go on",
        arguments: &[],
        read_only: false,
    },
    Tool {
        name: "fail",
        description: "Fails as a tool fails: a result with isError",
        arguments: &[("text", "string", "What the failure says")],
        read_only: true,
    },
    Tool {
        name: "broken",
        description: "Fails with a JSON-RPC error",
        arguments: &[("message", "string", "What the error says")],
        read_only: true,
    },
    Tool {
        name: "ask",
        description: "Asks for a name (one elicitation) and greets",
        arguments: &[("message", "string", "The question")],
        read_only: true,
    },
    Tool {
        name: "ask_two",
        description: "Asks for a name and a confirmation at once",
        arguments: &[],
        read_only: true,
    },
    Tool { name: "ask_twice", description: "Asks for a name, then for a colour", arguments: &[], read_only: true },
    Tool {
        name: "ask_url",
        description: "Asks to visit a page (an elicitation by URL)",
        arguments: &[],
        read_only: true,
    },
    Tool {
        name: "summarize",
        description: "Has the client's model summarize a text (sampling)",
        arguments: &[("text!", "string", "The text")],
        read_only: true,
    },
    Tool { name: "roots", description: "Lists the client's roots", arguments: &[], read_only: true },
    Tool {
        name: "log",
        description: "Sends log messages, then the result",
        arguments: &[
            ("messages", "integer", "How many (default 1)"),
            ("level", "string", "Their level (default info)"),
            ("text", "string", "What they say"),
        ],
        read_only: true,
    },
    Tool {
        name: "big",
        description: "Returns a text of so many bytes, 64 MiB at most",
        arguments: &[("bytes!", "integer", "How many")],
        read_only: true,
    },
    Tool { name: "count", description: "Counts up and returns the count", arguments: &[], read_only: false },
    Tool {
        name: "exact",
        description: "Returns a result whose spelling matters: big numbers, odd keys, unknown members",
        arguments: &[],
        read_only: true,
    },
    Tool {
        name: "deploy",
        description: "Says where it would deploy; 2026-07-28 has its arguments in header fields as well",
        arguments: &[
            ("region!", "string", "Where"),
            ("shard", "integer", "Which part"),
            ("dry_run", "boolean", "Whether it would only pretend"),
            ("target.zone", "string", "Where exactly"),
        ],
        read_only: true,
    },
    Tool { name: "stats", description: "Returns what the server has seen", arguments: &[], read_only: true },
    Tool {
        name: "fault",
        description: "Answers as a broken server does",
        arguments: &[(
            "kind!",
            "string",
            "What breaks: http_NNN, html, cut_json, reset, end_early, close, session_gone, silent, gzip, redirect, wrong_id, garbage, twice, flood; over stdio: exit, noise, silent",
        )],
        read_only: false,
    },
];
