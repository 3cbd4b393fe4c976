"""Callers with tokens of a real authorization server, and upstreams that take only such tokens.

One gateway with four routes, before one server: callers have signed tokens or opaque ones that the gateway asks about, and
the server gets no token, one of taskgate's own, or one that was exchanged for the caller's.
"""

import json
import os
import re
import stat
import subprocess
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stage.legs import CLIENT_LIMIT, REFUSED, SOON, judge, run_lines, start_recorder
from stage.login import write_browser
from stage.places import MODERN_PYTHON, NODE, PYTHON, RUNS, TESTS
from stage.programs import NotReady, Programs, answers, free_port, listens
from stage.report import Report

NAME = "authorization server"
SDKS: dict[tuple[str, str], list[str | Path]] = {
    ("TypeScript", "legacy"): [NODE, TESTS / "clients" / "authorized.mjs"],
    ("TypeScript", "modern"): [NODE, TESTS / "clients" / "authorized.mjs"],
    ("Python", "legacy"): [PYTHON, TESTS / "clients" / "authorized.py"],
    ("Python", "modern"): [MODERN_PYTHON, TESTS / "clients" / "authorized.py"],
}
ERAS = ("legacy", "modern")
AT_ONCE = 12
ROUTES = ("signed", "clients", "exchanged", "opaque")
OPEN = ("signed", "opaque")  # routes before the server as it is
RULES = [{"match": "large", "allow": "claims.role == 'admin'"}, {"match": "count", "scopes": ["mcp:write"]}]
ITSELF = {"client_id": "taskgate", "client_secret": "secret-of-taskgate"}
WITHDRAWN = "/clients/mcp: ERR_JWKS_NO_MATCHING_KEY"
CLIENT_CREDENTIALS = "client_credentials"
EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"


@dataclass(frozen=True)
class Stage:
    """Where everything is. `public` is what the gateway's clients call it: the recorder before it."""

    programs: Programs
    folder: Path
    issuer: str
    control: str
    server: str
    guard: str
    public: str

    def record(self, side: str) -> Path:
        return self.folder / f"{side}.jsonl"


def run_authorization(binary: Path, report: Report) -> None:
    folder = RUNS / NAME.replace(" ", "-")
    try:
        with Programs(folder) as programs:
            stage = _start(programs, folder, binary)
            _run_clients(stage, binary, report)
            _run_tokens(stage, report)
            _check_upstream(stage, report)
            judge(NAME, stage.record("clients"), stage.record("server"), report, refused=REFUSED)
            _check_log(stage, report)
    except NotReady as problem:
        report.add(NAME, "every program starts", "failed", str(problem))


def _start(programs: Programs, folder: Path, binary: Path) -> Stage:
    for side in ("clients", "server", "guard"):
        (folder / f"{side}.jsonl").unlink(missing_ok=True)
    port, control, server, guard, listen = (free_port() for _ in range(5))
    issuer = f"http://127.0.0.1:{port}"
    servers = TESTS / "servers"
    programs.start(
        "authorization", [NODE, servers / "authorization.mjs", "--port", str(port), "--control", str(control),
                          "--opaque", "/opaque/", "--es256", "/clients/"],
        lambda: answers(f"{issuer}/.well-known/openid-configuration"))
    programs.start(
        "server", [NODE, servers / "ts_tools.mjs", "--port", str(server), "--legacy-port", str(free_port()),
                   "--modern-port", str(free_port())], lambda: listens(server))
    programs.start(
        "guard", [NODE, servers / "guard.mjs", "--port", str(guard), "--issuer", issuer,
                  "--target", f"http://127.0.0.1:{server}", "--record", folder / "guard.jsonl"], lambda: listens(guard))
    behind = start_recorder(programs, "server-recorder", f"http://127.0.0.1:{guard}", folder / "server.jsonl")
    public = start_recorder(programs, "clients-recorder", f"http://127.0.0.1:{listen}", folder / "clients.jsonl")
    stage = Stage(programs, folder, issuer, f"http://127.0.0.1:{control}", f"http://127.0.0.1:{server}",
                  f"http://127.0.0.1:{guard}", public)
    _start_gateway(stage, binary, listen, behind)
    return stage


def _start_gateway(stage: Stage, binary: Path, listen: int, behind: str) -> None:
    admin = f"127.0.0.1:{free_port()}"
    path = stage.programs.log("gateway").with_suffix(".yaml")
    path.write_text(json.dumps({  # JSON is YAML
        "listen": {"address": f"127.0.0.1:{listen}", "public_url": stage.public},
        "admin": {"address": admin},
        "shutdown": {"drain": "5s"},
        "auth": {
            "jwt": [{"issuer": stage.issuer, "tenant_claim": "org_id", "leeway": "1s"}],
            "introspection": {
                "url": f"{stage.issuer}/token/introspection", "issuer": stage.issuer, "tenant_claim": "org_id", **ITSELF,
            },
            "required_scopes": ["mcp:read"],
        },
        "routes": [_route(stage, name, behind) for name in ROUTES],
    }, indent=2))
    stage.programs.start("gateway", [binary, "serve", "--config", path], lambda: answers(f"http://{admin}/readyz"))


def _route(stage: Stage, name: str, behind: str) -> dict[str, Any]:
    path = "/open/mcp" if name in OPEN else f"/{name}/mcp"
    upstream: dict[str, Any] = {"url": behind + path}
    if name not in OPEN:
        upstream["oauth"] = {
            "token_url": f"{stage.issuer}/token", "scope": "mcp:read", "resource": stage.guard + path, **ITSELF,
        }
    if name == "exchanged":
        upstream["oauth"]["exchange"] = True
    route = {"name": name, "path": f"/{name}/mcp", "upstream": upstream, "tasks": SOON["tasks"] | {"poll_interval": "200ms"}}
    return route | ({"authorize": RULES} if name == "signed" else {})


def _run_clients(stage: Stage, binary: Path, report: Report) -> None:
    """The SDKs' own OAuth clients and taskgate's, from the refusal to a task, on every route at the same time."""
    browser = write_browser(stage.folder)

    def run_sdk(route: str, name: str, era: str) -> None:
        command = [*SDKS[name, era], "--era", era, "--tools", "ts", "--label", f"{route}-{name}-{era}",
                   "--url", f"{stage.public}/{route}/mcp", "--direct", f"{stage.server}/mcp"]
        run_lines(f"{NAME}, {route}, {name} SDK, {era}", command + (["--rules"] if route == "signed" else []), CLIENT_LIMIT,
                  report, BROWSER=str(browser), ACCOUNT="alice")

    with ThreadPoolExecutor(AT_ONCE) as pool:
        running = [pool.submit(run_sdk, route, *sdk) for route in ROUTES for sdk in SDKS]
        running += [pool.submit(_run_login, stage, binary, browser, route, era, report) for route in ROUTES for era in ERAS]
    for done in running:
        done.result()


def _run_login(stage: Stage, binary: Path, browser: Path, route: str, era: str, report: Report) -> None:
    """`taskgate call --login`: with the browser, then with what was kept, then, where a tool asks for more, with both."""
    tokens = stage.folder / "tokens" / f"{route}-{era}.json"
    tokens.unlink(missing_ok=True)
    steps, count = ("steps", {"steps": 4, "seconds": 1.2}), ("count", {"label": f"{route}-login-{era}"})

    def call(claim: str, tool: tuple[str, dict[str, Any]], more: list[str], expected: str, browser: Path | str) -> None:
        command = [binary, "call", f"{stage.public}/{route}/mcp", tool[0], "--arguments", json.dumps(tool[1]), "--era", era,
                   "--login", "--token-file", tokens, *more]
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=CLIENT_LIMIT,
                              stdin=subprocess.DEVNULL, env={**os.environ, "BROWSER": str(browser), "ACCOUNT": "alice"})
        good = done.returncode == 0 and json.loads(done.stdout)["content"][0].get("text") == expected
        report.add(f"{NAME}, {route}, taskgate call --login, {era}", claim, "passed" if good else "failed",
                   "" if good else f"exit code {done.returncode}: {done.stdout[-300:]} {done.stderr[-500:]}")

    call("from the refusal to the result of a task", steps, ["--task"], "4 steps done", browser)
    call("the tokens that were kept are good, without a browser", steps, ["--task"], "4 steps done", "/nowhere/browser")
    if route == "signed":
        call("a call that needs more scopes: the browser again, and then it runs, once", count, [], "1", browser)
    mode = stat.S_IMODE(tokens.stat().st_mode) if tokens.exists() else 0
    report.add(f"{NAME}, {route}, taskgate call --login, {era}", "the file of tokens is its owner's alone",
               "passed" if mode == 0o600 else "failed", "" if mode == 0o600 else f"mode {mode:o}")


def _run_tokens(stage: Stage, report: Report) -> None:
    command = [NODE, TESTS / "clients" / "tokens.mjs", "--url", stage.public, "--issuer", stage.issuer,
               "--control", stage.control, "--label", "tokens", "--tools", "ts"]
    run_lines(f"{NAME}, tokens by hand", command, CLIENT_LIMIT, report)


def _check_upstream(stage: Stage, report: Report) -> None:
    """What the server was given: never a caller's token, on each route the one that it takes, and few requests for them."""
    def check(what: str, faults: list[str]) -> None:
        report.add(NAME, what, "failed" if faults else "passed", "; ".join(faults[:5]))

    with urllib.request.urlopen(f"{stage.control}/journal", timeout=5) as response:
        journal = [entry for entry in json.load(response) if "token" in entry]
    record = stage.record("guard").read_text(encoding="utf-8")
    seen = [json.loads(line) for line in record.splitlines()]
    own = {entry["token"] for entry in journal if entry["client"] == ITSELF["client_id"]}
    callers = {entry["token"] for entry in journal} - own
    check(f"to the server: none of {len(callers)} tokens of callers",
          [f"{token[:12]}..." for token in callers if token in record] or ([] if callers else ["there were none"]))
    check("to the server: its own tokens, so that one would have been found",
          [] if any(token in record for token in own) else ["none"])
    refused = [f"{entry['url']}: {entry['claims']['why']}" for entry in seen if "why" in entry["claims"]]
    check("to the server: it refused one message, when the key of taskgate's token was withdrawn",
          [] if refused == [WITHDRAWN] else [str(refused)])
    check("to the open server: no token at all",
          [str(entry["rawHeaders"]) for entry in seen if entry["url"] == "/open/mcp" and _has_token(entry)])
    check("client credentials: the token is taskgate's own",
          _wrong_subjects(seen, "/clients/mcp", {"taskgate"}))
    check("exchange: each token is of the caller, with taskgate as the actor",
          _wrong_subjects(seen, "/exchanged/mcp", {"alice"})
          + [str(entry["claims"]) for entry in seen if entry["url"] == "/exchanged/mcp" and entry["claims"].get("act") != {"sub": "taskgate"}])
    asked = [entry for entry in journal if entry["client"] == ITSELF["client_id"]]
    credentials = sum(entry["grant"] == CLIENT_CREDENTIALS for entry in asked)
    check("client credentials: one token for all, and one after that", [] if credentials == 2 else [f"asked for {credentials} times"])
    exchanged = sum(entry["grant"] == EXCHANGE for entry in asked)
    subjects = sum(entry.get("resource", "").endswith("/exchanged/mcp") for entry in journal if entry["client"] != ITSELF["client_id"])
    check(f"exchange: once for each of {subjects} tokens of callers",
          [] if 0 < exchanged <= subjects else [f"exchanged {exchanged} times"])


def _has_token(entry: dict[str, Any]) -> bool:
    return any(name.lower() == "authorization" for name in entry["rawHeaders"][::2])


def _wrong_subjects(seen: list[dict[str, Any]], url: str, right: set[str]) -> list[str]:
    subjects = {entry["claims"].get("sub") for entry in seen if entry["url"] == url and "why" not in entry["claims"]}
    return [] if subjects == right else [f"tokens of {subjects}"]


def _check_log(stage: Stage, report: Report) -> None:
    """The gateway stops as it should, and its log has neither a token nor a secret."""
    with urllib.request.urlopen(f"{stage.control}/journal", timeout=5) as response:
        tokens = {entry["token"] for entry in json.load(response) if "token" in entry}
    code = stage.programs.stop("gateway")
    report.add(NAME, "the gateway stops with 0 on SIGTERM", "passed" if code == 0 else "failed",
               "" if code == 0 else f"exit code {code}: {stage.programs.tail('gateway')}")
    log = stage.programs.log("gateway").read_text(encoding="utf-8", errors="replace")
    found = [token for token in tokens if token in log] + re.findall(r"eyJ[\w-]+\.|secret-of-\w+", log)
    report.add(NAME, f"the log has none of {len(tokens)} tokens, and no secret", "failed" if found or not tokens else "passed",
               f"{len(found)} found")
