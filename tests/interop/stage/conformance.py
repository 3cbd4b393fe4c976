"""The official conformance suite, over the fixture alone and over the gateway in front of it.

The gateway may not lose a single check: whatever passes over the fixture alone passes through the gateway, with the
same id in the same scenario. A scenario that throws leaves no checks behind and so loses all of its own.
"""

import json
import re
import shutil
import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from stage.gateway import start_gateway
from stage.legs import judge, start_recorder
from stage.places import CONFORMANCE, NODE, RUNS, TESTS
from stage.programs import NotReady, Programs, free_port, listens
from stage.report import Report

REVISION = "2025-11-25"
PASSING = 84  # over the fixture alone; fewer would mean that the fixture, or the suite, has changed
SUITE_LIMIT = 300
NAMED = re.compile(r"server-(.+)-\d{4}-\d\d-\d\dT[\d-]+Z")  # how the suite names a scenario's folder
STEPS = {f"conformance {REVISION}, delay {delay} ms": delay for delay in (0, 400)}


@dataclass(frozen=True)
class Checks:
    """How often each check of a scenario had each status, and what went wrong in it."""

    counts: Counter[tuple[str, str, str]]
    messages: dict[tuple[str, str], str]

    def having(self, *statuses: str) -> Counter[tuple[str, str]]:
        chosen: Counter[tuple[str, str]] = Counter()
        for (scenario, check, status), count in self.counts.items():
            if status in statuses:
                chosen[scenario, check] += count
        return chosen


def run_step(step: str, binary: Path | None, report: Report) -> None:
    folder = RUNS / step.replace(" ", "-").replace(",", "")
    try:
        with Programs(folder) as programs:
            _run_step(step, STEPS[step], folder, programs, binary, report)
    except (NotReady, subprocess.TimeoutExpired) as problem:
        report.add(step, "the suite runs to its end", "failed", str(problem))


def _run_step(step: str, delay: int, folder: Path, programs: Programs, binary: Path | None, report: Report) -> None:
    port = free_port()
    command = [NODE, TESTS / "fixture" / "server.mjs", "--port", str(port), "--delay", str(delay)]
    programs.start("fixture", command, lambda: listens(port))
    fixture = f"http://127.0.0.1:{port}"

    alone = _run_suite(f"{fixture}/mcp", folder / "alone")
    passed, bad = alone.having("SUCCESS").total(), alone.having("FAILURE", "WARNING")
    good = passed == PASSING and not bad
    report.add(step, f"the fixture alone passes {PASSING} checks", "passed" if good else "failed",
               "" if good else f"{passed} passed, failed: {sorted(bad)}")
    if binary is None:
        report.add(step, "the gateway", "skipped", "no taskgate binary: build it, or name it with --gateway")
        return

    records = {side: folder / f"{side}.jsonl" for side in ("clients", "server")}
    for record in records.values():
        record.unlink(missing_ok=True)
    watched = start_recorder(programs, "server-recorder", fixture, records["server"])
    gateway = start_gateway(programs, binary, upstream=f"{watched}/mcp")
    watching = start_recorder(programs, "clients-recorder", gateway.origin, records["clients"])
    through = _run_suite(f"{watching}/mcp", folder / "through")
    _compare(step, alone, through, report)
    judge(step, records["clients"], records["server"], report)


def _run_suite(url: str, output: Path) -> Checks:
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    command = [NODE, CONFORMANCE, "server", "--url", url, "--suite", "all", "--spec-version", REVISION, "-o", output]
    with (output / "suite.log").open("wb") as log:
        # The exit code is not asked: what counts is which checks were written down.
        subprocess.run([str(part) for part in command], stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                       timeout=SUITE_LIMIT, check=False)
    counts: Counter[tuple[str, str, str]] = Counter()
    messages: dict[tuple[str, str], str] = {}
    for path in sorted(output.glob("server-*/checks.json")):
        scenario = NAMED.fullmatch(path.parent.name)[1]
        for check in json.loads(path.read_text(encoding="utf-8")):
            counts[scenario, check["id"], check["status"]] += 1
            if check.get("errorMessage"):
                messages[scenario, check["id"]] = check["errorMessage"]
    return Checks(counts, messages)


def _compare(step: str, alone: Checks, through: Checks, report: Report) -> None:
    expected, got, bad = alone.having("SUCCESS"), through.having("SUCCESS"), through.having("FAILURE", "WARNING")
    for scenario in sorted({scenario for scenario, _ in expected + bad}):
        wrong = {check for (of, check) in (expected - got) + bad if of == scenario}
        detail = "; ".join(f"{check}: {through.messages.get((scenario, check), 'missing')}"[:300] for check in sorted(wrong))
        report.add(step, f"{scenario} passes as over the fixture alone", "failed" if wrong else "passed", detail)
