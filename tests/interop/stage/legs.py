"""The legs: real clients, through the gateway, in front of real servers, with a recorder on both sides."""

import json
import os
import subprocess
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stage.gateway import KEYS, Gateway, rules_for_clients, start_gateway, start_replicas
from stage.places import EVERYTHING, MODERN_PYTHON, NODE, PYTHON, RMCP, RUNS, TESTS
from stage.programs import NotReady, Programs, free_port, listens
from stage.replicas import REDIS, can_share
from stage.report import Report

CLIENT_LIMIT = 300
JUDGE_LIMIT = 120
SEEN_LIMIT = 10.0
REFUSED = "refused"  # the label of calls, in servers/tools.json, that the gateway has to refuse
JOURNALED = ("plain", "native", "fastmcp-4", "ts", "py")  # servers whose tools write down what happened to them
TOOLS = {"native": "plain", "fastmcp-4": "plain", "py": "plain"}  # whose tools they have; the others have their own
OLDER = ["2025-06-18", "2025-03-26", "2024-11-05"]
WITH_ELICITATION = "2025-06-18"
_CLIENTS = TESTS / "clients"
CLIENTS: dict[str, list[str | Path]] = {
    # of 2025-11-25, with its tasks
    "ts-sdk": [NODE, _CLIENTS / "ts_sdk.mjs"],
    "python-sdk": [PYTHON, _CLIENTS / "python_sdk.py"],
    "fastmcp": [PYTHON, _CLIENTS / "fastmcp_client.py"],
    "ext-tasks-legacy": [NODE, _CLIENTS / "ts_ext_tasks.mjs", "--era", "legacy"],
    # of 2025-11-25, declaring the extension, which means nothing there
    "rmcp-legacy": [RMCP, "--era", "legacy"],
    # of 2026-07-28, with the extension
    "ext-tasks": [NODE, _CLIENTS / "ts_ext_tasks.mjs", "--era", "modern"],
    "fastmcp-4": [MODERN_PYTHON, _CLIENTS / "fastmcp_modern.py"],
    "rmcp": [RMCP, "--era", "modern"],
    "probe": [NODE, _CLIENTS / "probe.mjs"],
    # of 2026-07-28, without it
    "ts-plain": [NODE, _CLIENTS / "ts_plain.mjs"],
    "py-plain": [MODERN_PYTHON, _CLIENTS / "py_plain.py"],
}
TASK_CLIENTS = ("ts-sdk", "python-sdk", "fastmcp")
LEGACY = (*TASK_CLIENTS, "ext-tasks-legacy", "rmcp-legacy")
MODERN = ("ext-tasks", "fastmcp-4", "rmcp", "probe", "ts-plain", "py-plain")
# A call becomes a task soon; a question asked before that makes it one, but for one tool that asks in the call.
SOON = {
    "tasks": {"defer": "500ms", "questions": "in_task", "tools": [{"match": "ask", "questions": "in_call"}]},
}


@dataclass(frozen=True)
class Leg:
    """One arrangement. `server` is an entry of servers/tools.json, or another name for one in `TOOLS`."""

    name: str
    server: str
    clients: tuple[str, ...] = TASK_CLIENTS
    behind: str = "both"  # which of its ports the gateway is in front of, where a server has one for each era
    stdio: bool = False
    keys: bool = False
    policy: bool = False
    gateway: bool = True
    replicas: int = 1  # gateways that share a store, behind a balancer that switches with every request
    options: tuple[str, ...] = ()  # demo_server's, behind the gateway
    without: str | None = None  # what the clients can't have then

    @property
    def direct_options(self) -> tuple[str, ...]:
        """The clients compare with a server of the same version that has none of the other habits."""
        if "--era" in self.options:
            return "--era", "both"
        return self.options[:2] if "--version" in self.options else ()

    @property
    def tools(self) -> str:
        return TOOLS.get(self.server, self.server)

    @property
    def route(self) -> dict[str, Any] | None:
        if self.policy:
            return rules_for_clients()
        return SOON if set(self.clients) & set(MODERN) else None


LEGS = [
    # No gateway: what the clients check must hold for a server that does tasks itself.
    Leg("native tasks, no gateway", "native", gateway=False),
    Leg("server-everything over HTTP", "everything"),
    Leg("server-everything over stdio", "everything", stdio=True),
    Leg("FastMCP server", "plain"),
    Leg("FastMCP server, callers with keys", "plain", keys=True),
    Leg("FastMCP server, a route with rules", "plain", policy=True),
    *(
        Leg(f"server of {version} over {'stdio' if stdio else 'HTTP'}", "demo", stdio=stdio,
            options=("--version", version), without=None if version >= WITH_ELICITATION else "ask")
        for version in OLDER
        for stdio in (False, True)
    ),
    Leg("server that sends batches", "demo", options=("--version", "2025-03-26", "--batches"), without="ask"),
    Leg("server that asks on the GET stream", "demo", options=("--ask-on-get",)),
    Leg("server that answers with JSON", "demo", options=("--always-json",), without="last-progress"),
    Leg("server that primes and numbers its streams", "demo", options=("--priming", "--event-ids")),
    Leg("server without sessions", "demo", options=("--stateless",), without="questions"),
    # Clients of 2026-07-28, and both eras at one endpoint.
    Leg("server-everything, modern clients", "everything", MODERN),
    # With keys, since callers without them get a process for each call.
    Leg("demo server over stdio, modern clients with keys", "demo", MODERN, stdio=True, keys=True),
    Leg("FastMCP 3 server, modern clients", "plain", MODERN),
    Leg("FastMCP 3 server, modern clients with keys", "plain", MODERN, keys=True),
    Leg("TypeScript server of 2025-11-25, clients of both eras", "ts", LEGACY + MODERN, behind="legacy"),
    Leg("TypeScript server of 2026-07-28, clients of both eras", "ts", LEGACY + MODERN, behind="modern"),
    Leg("TypeScript server of both revisions, modern clients with keys", "ts", MODERN, keys=True),
    Leg("Python server of both revisions, clients of both eras", "py", LEGACY + MODERN),
    Leg("demo server of 2026-07-28 over HTTP, clients of both eras", "demo", LEGACY + MODERN, options=("--era", "modern")),
    Leg("demo server of 2026-07-28 over stdio, clients of both eras", "demo", LEGACY + MODERN, stdio=True,
        options=("--era", "modern")),
    Leg("FastMCP 4 server, clients of both eras", "fastmcp-4", LEGACY + MODERN, without="questions"),
    # Every request finds another gateway.
    Leg("three replicas, TypeScript server of 2025-11-25, clients of both eras", "ts", LEGACY + MODERN, behind="legacy",
        replicas=3),
    Leg("three replicas, TypeScript server of 2026-07-28, clients of both eras", "ts", LEGACY + MODERN, behind="modern",
        replicas=3),
    Leg("three replicas, FastMCP server, callers with keys", "plain", keys=True, replicas=3),
    Leg("three replicas, server-everything over stdio", "everything", stdio=True, replicas=3),
]


def run_leg(leg: Leg, binary: Path | None, report: Report) -> None:
    """Runs every client of the leg at the same time, then judges what was recorded."""
    folder = RUNS / leg.name.replace(" ", "-").replace(",", "")
    try:
        with Programs(folder) as programs:
            _run_leg(leg, binary, report, programs, folder)
    except NotReady as problem:
        report.add(leg.name, "every program starts", "failed", str(problem))


def _run_leg(leg: Leg, binary: Path | None, report: Report, programs: Programs, folder: Path) -> None:
    records = {side: folder / f"{side}.jsonl" for side in ("clients", "server")}
    for record in records.values():
        record.unlink(missing_ok=True)

    demo = binary.with_name("demo_server") if binary else None
    if leg.server == "demo" and not (demo and demo.exists()):
        report.add(leg.name, "the server", "skipped", "no demo_server beside the taskgate binary: build it")
        return
    if leg.replicas > 1 and not can_share():
        report.add(leg.name, "the store", "skipped", f"no {REDIS}")
        return
    direct, behind = _start_server(leg, demo, programs)
    origin, gateway = direct, None
    if leg.gateway:
        assert binary is not None
        gateway = _start_gateway(leg, binary, demo, programs, behind, records["server"])
        origin = gateway.origin
    watched = start_recorder(programs, "clients-recorder", origin, records["clients"])

    with ThreadPoolExecutor(len(leg.clients)) as pool:
        list(pool.map(
            lambda name: _run_client(leg, name, f"{watched}/mcp", f"{direct}/mcp", records["server"], report), leg.clients))

    labels = [] if leg.policy else list(leg.clients)
    if leg.server in JOURNALED:
        _judge_journal(leg, labels, direct, report)
    judge(leg.name, records["clients"], records["server"] if leg.gateway else None, report,
          cancelled=labels, refused=REFUSED if leg.policy else None)
    if gateway:
        _judge_stop(leg, gateway, programs, records["server"], report)


def start_recorder(programs: Programs, name: str, origin: str, record: Path, *more: str) -> str:
    port = free_port()
    command = [NODE, TESTS / "wire" / "recorder.mjs", "--port", str(port), "--target", origin, "--log", record, *more]
    programs.start(name, command, lambda: listens(port))
    return f"http://127.0.0.1:{port}"


def _start_server(leg: Leg, demo: Path | None, programs: Programs) -> tuple[str, str]:
    """Where the server is for a direct call, and where the gateway finds it."""
    port, legacy, modern = (str(free_port()) for _ in range(3))
    servers = TESTS / "servers"
    command: list[str | Path] = {
        "native": [NODE, servers / "native_tasks.mjs", "--port", port],
        "plain": [PYTHON, servers / "plain_tools.py", "--port", port],
        "fastmcp-4": [MODERN_PYTHON, servers / "plain_tools.py", "--port", port],
        "py": [MODERN_PYTHON, servers / "py_tools.py", "--port", port],
        "ts": [NODE, servers / "ts_tools.mjs", "--port", port, "--legacy-port", legacy, "--modern-port", modern],
        "everything": [NODE, EVERYTHING, "streamableHttp"],
        "demo": [demo, "--listen", f"127.0.0.1:{port}", *leg.direct_options],
    }[leg.server]
    ports = {"both": port, "legacy": legacy, "modern": modern}
    programs.start("server", command, lambda: listens(int(ports[leg.behind])), PORT=port)
    return f"http://127.0.0.1:{port}", f"http://127.0.0.1:{ports[leg.behind]}"


def _start_gateway(
    leg: Leg, binary: Path, demo: Path | None, programs: Programs, server: str, record: Path,
) -> Gateway:
    def start(**options: Any) -> Gateway:
        if leg.replicas > 1:
            return start_replicas(programs, binary, leg.replicas, keys=leg.keys, route=leg.route, **options)
        return start_gateway(programs, binary, keys=leg.keys, route=leg.route, **options)

    if leg.stdio:
        child = [NODE, EVERYTHING, "stdio"] if leg.server == "everything" else [demo, "--stdio", *leg.options]
        command = [NODE, TESTS / "wire" / "tap.mjs", record, *child]
        return start(command=command)
    if leg.options != leg.direct_options:
        port = free_port()
        programs.start("server-behind", [demo, "--listen", f"127.0.0.1:{port}", *leg.options], lambda: listens(port))
        server = f"http://127.0.0.1:{port}"
    watched = start_recorder(programs, "server-recorder", server, record)
    return start(upstream=f"{watched}/mcp")


def _run_client(leg: Leg, name: str, url: str, direct: str, record: Path, report: Report) -> None:
    arguments = ["--url", url, "--direct", direct, "--tools", leg.tools, "--label", name]
    if leg.server not in JOURNALED or CLIENTS[name][0] == RMCP:
        arguments += ["--record", record]
    if not leg.gateway:
        arguments.append("--native")
    if leg.policy:
        arguments.append("--policy")
    if leg.without:
        arguments += ["--without", leg.without]
    if leg.keys:
        arguments += ["--key", KEYS["acme"], "--other-key", KEYS["globex"]]
    run_lines(f"{leg.name}, {name}", [*CLIENTS[name], *arguments], CLIENT_LIMIT, report)


def run_lines(where: str, command: list[str | Path], limit: float, report: Report, **environment: str) -> None:
    """Runs a program that prints a JSON line for each check; one that dies or is late has failed, too."""
    try:
        done = subprocess.run(
            [str(part) for part in command], capture_output=True, text=True, timeout=limit, stdin=subprocess.DEVNULL,
            env={**os.environ, **environment})
    except subprocess.TimeoutExpired as late:
        report.add_lines(where, (late.stdout or b"").decode(errors="replace"))
        report.add(where, "runs to its end", "failed", f"stopped after {limit:.0f} s")
        return
    checks = report.add_lines(where, done.stdout)
    if done.returncode != 0 or checks == 0:
        report.add(where, "runs to its end", "failed", f"exit code {done.returncode}: {done.stderr[-800:].strip()}")


def judge(
    where: str, clients: Path, server: Path | None, report: Report, cancelled: list[str] = (), refused: str | None = None,
) -> None:
    command = [NODE, TESTS / "wire" / "judge.mjs", "--clients", clients]
    command += ["--server", server] if server else ["--foreign"]
    for label in cancelled if server else []:
        command += ["--cancelled", label]
    if refused:
        command += ["--refused", refused]
    run_lines(where, command, JUDGE_LIMIT, report)


def _judge_journal(leg: Leg, labels: list[str], server: str, report: Report) -> None:
    """What the server's tools say happened to them: a cancelled call ended there, and a counted one ran once."""
    for label in labels:
        events: list[str] = []
        deadline = time.monotonic() + SEEN_LIMIT
        while "cancelled" not in events and time.monotonic() < deadline:
            with urllib.request.urlopen(f"{server}/journal", timeout=5) as response:
                events = [entry["event"] for entry in json.load(response) if entry["label"] == label]
            time.sleep(0.05)
        calls = [event for event in events if event != "counted"]
        good = calls == ["started", "cancelled"]
        report.add(leg.name, f"the tool cancelled by {label} stopped", "passed" if good else "failed", "" if good else str(calls))


def _judge_stop(leg: Leg, gateway: Gateway, programs: Programs, record: Path, report: Report) -> None:
    """SIGTERM ends each gateway with 0, and with it every child it started."""
    for name in gateway.names:
        code = programs.stop(name)
        report.add(leg.name, f"the {name} stops with 0 on SIGTERM", "passed" if code == 0 else "failed",
                   "" if code == 0 else f"exit code {code}: {programs.tail(name)}")
    if not leg.stdio:
        return
    children = {json.loads(line)["session"].removeprefix("pid-") for line in record.read_text().splitlines()}
    left = [child for child in children if _runs(int(child))]
    report.add(leg.name, f"none of its {len(children)} children is left", "failed" if left or not children else "passed",
               f"still running: {left}" if left else "")


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True
