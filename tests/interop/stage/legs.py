"""The legs: real clients, through the gateway, in front of real servers, with a recorder on both sides."""

import json
import os
import subprocess
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from stage.gateway import KEYS, Gateway, rules_for_clients, start_gateway
from stage.places import EVERYTHING, NODE, PYTHON, RUNS, TESTS
from stage.programs import NotReady, Programs, free_port, listens
from stage.report import Report

CLIENT_LIMIT = 300
JUDGE_LIMIT = 120
SEEN_LIMIT = 10.0
REFUSED = "refused"  # the label of calls, in servers/tools.json, that the gateway has to refuse
JOURNALED = ("plain", "native")  # servers whose tools write down what happened to them
OLDER = ["2025-06-18", "2025-03-26", "2024-11-05"]
WITH_ELICITATION = "2025-06-18"
CLIENTS = {
    "ts-sdk": [NODE, TESTS / "clients" / "ts_sdk.mjs"],
    "python-sdk": [PYTHON, TESTS / "clients" / "python_sdk.py"],
    "fastmcp": [PYTHON, TESTS / "clients" / "fastmcp_client.py"],
}


@dataclass(frozen=True)
class Leg:
    """One arrangement. `server` is an entry of servers/tools.json, or `native` for the yardstick."""

    name: str
    server: str
    stdio: bool = False
    keys: bool = False
    policy: bool = False
    gateway: bool = True
    options: tuple[str, ...] = ()  # demo_server's, behind the gateway
    without: str | None = None  # what the clients can't have then

    @property
    def direct_options(self) -> tuple[str, ...]:
        """The clients compare with a server of the same version that has none of the other habits."""
        return self.options[:2] if "--version" in self.options else ()


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
    direct = _start_server(leg, demo, programs)
    origin, gateway = direct.removesuffix("/mcp"), None
    if leg.gateway:
        assert binary is not None
        gateway = _start_gateway(leg, binary, demo, programs, origin, records["server"])
        origin = gateway.origin
    watched = start_recorder(programs, "clients-recorder", origin, records["clients"])

    with ThreadPoolExecutor(len(CLIENTS)) as pool:
        list(pool.map(lambda name: _run_client(leg, name, f"{watched}/mcp", direct, records["server"], report), CLIENTS))

    labels = [] if leg.policy else list(CLIENTS)
    if leg.server in JOURNALED:
        _judge_journal(leg, labels, direct.removesuffix("/mcp"), report)
    judge(leg.name, records["clients"], records["server"] if leg.gateway else None, report,
          cancelled=labels, refused=REFUSED if leg.policy else None)
    if gateway:
        _judge_stop(leg, programs, records["server"], report)


def start_recorder(programs: Programs, name: str, origin: str, record: Path) -> str:
    port = free_port()
    command = [NODE, TESTS / "wire" / "recorder.mjs", "--port", str(port), "--target", origin, "--log", record]
    programs.start(name, command, lambda: listens(port))
    return f"http://127.0.0.1:{port}"


def _start_server(leg: Leg, demo: Path | None, programs: Programs) -> str:
    port = free_port()
    command, environment = {
        "native": lambda: ([NODE, TESTS / "servers" / "native_tasks.mjs", "--port", str(port)], {}),
        "plain": lambda: ([PYTHON, TESTS / "servers" / "plain_tools.py", "--port", str(port)], {}),
        "everything": lambda: ([NODE, EVERYTHING, "streamableHttp"], {"PORT": str(port)}),
        "demo": lambda: ([demo, "--listen", f"127.0.0.1:{port}", *leg.direct_options], {}),
    }[leg.server]()
    programs.start("server", command, lambda: listens(port), **environment)
    return f"http://127.0.0.1:{port}/mcp"


def _start_gateway(
    leg: Leg, binary: Path, demo: Path | None, programs: Programs, server: str, record: Path,
) -> Gateway:
    if leg.stdio:
        child = [NODE, EVERYTHING, "stdio"] if leg.server == "everything" else [demo, "--stdio", *leg.options]
        return start_gateway(programs, binary, command=[NODE, TESTS / "wire" / "tap.mjs", record, *child])
    if leg.options != leg.direct_options:
        port = free_port()
        programs.start("server-behind", [demo, "--listen", f"127.0.0.1:{port}", *leg.options], lambda: listens(port))
        server = f"http://127.0.0.1:{port}"
    watched = start_recorder(programs, "server-recorder", server, record)
    return start_gateway(programs, binary, upstream=f"{watched}/mcp", keys=leg.keys,
                         route=rules_for_clients() if leg.policy else None)


def _run_client(leg: Leg, name: str, url: str, direct: str, record: Path, report: Report) -> None:
    tools = "plain" if leg.server == "native" else leg.server
    arguments = ["--url", url, "--direct", direct, "--tools", tools, "--label", name]
    if leg.server not in JOURNALED:
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


def run_lines(where: str, command: list[str | Path], limit: float, report: Report) -> None:
    """Runs a program that prints a JSON line for each check; one that dies or is late has failed, too."""
    try:
        done = subprocess.run(
            [str(part) for part in command], capture_output=True, text=True, timeout=limit, stdin=subprocess.DEVNULL)
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


def _judge_stop(leg: Leg, programs: Programs, record: Path, report: Report) -> None:
    """SIGTERM ends the gateway with 0, and with it every child it started."""
    code = programs.stop("gateway")
    report.add(leg.name, "the gateway stops with 0 on SIGTERM", "passed" if code == 0 else "failed",
               "" if code == 0 else f"exit code {code}: {programs.tail('gateway')}")
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
