"""The official conformance suite, over the fixture alone and over the gateway in front of it.

The fixture speaks either revision, or both. Whatever passes over the fixture of both revisions alone has to pass through
the gateway, with the same id in the same scenario, whichever revisions the fixture behind it speaks. What can't pass where
the eras are crossed stands with its reason in conformance.json, and neither more nor less may fail. A scenario that
throws leaves no checks behind and so loses all of its own.
"""

import json
import re
import shutil
import subprocess
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from stage.gateway import KEYS, rules_for_suite, start_gateway, start_replicas
from stage.legs import judge, start_recorder
from stage.places import CONFORMANCE, NODE, RUNS, TESTS
from stage.programs import NotReady, Programs, free_port, listens
from stage.replicas import REDIS, can_share
from stage.report import Report

SUITE_LIMIT = 300
NAMED = re.compile(r"server-(.+)-\d{4}-\d\d-\d\dT[\d-]+Z")  # how the suite names a scenario's folder
EXPECTED = json.loads((TESTS / "fixture" / "conformance.json").read_text(encoding="utf-8"))
LEGACY, MODERN, TASKS = "2025-11-25", "2026-07-28", "tasks"
SUITES = {
    LEGACY: ["--suite", "all", "--spec-version", LEGACY],
    MODERN: ["--suite", "all", "--spec-version", MODERN],
    # The scenarios of the extension belong to no version; the suite keeps them among those that are pending. What else
    # is pending there runs with its own version, too.
    TASKS: ["--suite", "pending"],
}
ERAS = {"both": "both revisions", "legacy": f"only {LEGACY}", "modern": f"only {MODERN}"}


@dataclass(frozen=True)
class Step:
    """Some suites over a fixture that speaks these eras and waits that long before it asks or fails."""

    era: str
    suites: tuple[str, ...]
    delay: int
    keys: bool = False  # callers have them; the suite can't send a header of its own, so the recorder before the gateway does
    replicas: int = 1  # gateways that share a store, behind a balancer that switches with every request

    @property
    def name(self) -> str:
        more = (", callers with keys" if self.keys else "") + (f", {self.replicas} replicas" if self.replicas > 1 else "")
        return f"conformance, a server of {ERAS[self.era]}, delay {self.delay} ms{more}"


STEPS = {
    step.name: step
    for step in (
        *(
            step
            for delay in (0, 400)
            for step in (
                Step("both", (LEGACY, MODERN, TASKS), delay),
                Step("legacy", (MODERN, TASKS), delay),
                Step("modern", (LEGACY,), delay),
            )
        ),
        Step("both", (LEGACY, MODERN, TASKS), 0, keys=True),
        Step("both", (LEGACY, MODERN, TASKS), 0, replicas=3),
    )
}


@dataclass(frozen=True)
class Checks:
    """How often each check of a scenario had each status, and what went wrong in it."""

    counts: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    messages: dict[tuple[str, str], str] = field(default_factory=dict)

    def having(self, *statuses: str) -> Counter[tuple[str, str]]:
        chosen: Counter[tuple[str, str]] = Counter()
        for (scenario, check, status), count in self.counts.items():
            if status in statuses:
                chosen[scenario, check] += count
        return chosen

    @property
    def passed(self) -> Counter[tuple[str, str]]:
        return self.having("SUCCESS")

    @property
    def bad(self) -> Counter[tuple[str, str]]:
        return self.having("FAILURE", "WARNING")

    def of_tasks(self) -> "Checks":
        return Checks(Counter({key: count for key, count in self.counts.items() if key[0].startswith("tasks-")}), self.messages)


def run_step(name: str, binary: Path | None, report: Report) -> None:
    step = STEPS[name]
    folder = RUNS / name.replace(" ", "-").replace(",", "")
    try:
        alone = {suite: _alone(suite, step.delay, report) for suite in step.suites if suite != TASKS}
        if binary is None:
            report.add(name, "the gateway", "skipped", "no taskgate binary: build it, or name it with --gateway")
            return
        if step.replicas > 1 and not can_share():
            report.add(name, "the store", "skipped", f"no {REDIS}")
            return
        with Programs(folder) as programs:
            _run_step(step, alone, folder, programs, binary, report)
    except (NotReady, subprocess.TimeoutExpired) as problem:
        report.add(name, "the suite runs to its end", "failed", str(problem))


_known: dict[tuple[str, int], Checks] = {}


def _alone(suite: str, delay: int, report: Report) -> Checks:
    """What passes over the fixture alone; each suite is run once."""
    if (suite, delay) in _known:
        return _known[suite, delay]
    where, folder = f"conformance, the fixture alone, delay {delay} ms", RUNS / f"conformance-alone-{delay}"
    with Programs(folder) as programs:
        checks = _run_suite(suite, f"{_start_fixture(programs, 'both', delay)}/mcp", folder / suite)
    _known[suite, delay] = checks
    expected, passed, bad = EXPECTED["alone"][suite], checks.passed.total(), checks.bad
    good = passed == expected and not bad
    report.add(where, f"{suite}: {expected} checks pass and none fails", "passed" if good else "failed",
               "" if good else f"{passed} passed, failed: {sorted(bad)}")
    return checks


def _start_fixture(programs: Programs, era: str, delay: int) -> str:
    port = free_port()
    command = [NODE, TESTS / "fixture" / "server.mjs", "--port", str(port), "--era", era, "--delay", str(delay)]
    programs.start("fixture", command, lambda: listens(port))
    return f"http://127.0.0.1:{port}"


def _run_step(step: Step, alone: dict[str, Checks], folder: Path, programs: Programs, binary: Path, report: Report) -> None:
    records = {side: folder / f"{side}.jsonl" for side in ("clients", "server")}
    for record in records.values():
        record.unlink(missing_ok=True)
    fixture = _start_fixture(programs, step.era, step.delay)
    watched = start_recorder(programs, "server-recorder", fixture, records["server"])
    options = {"upstream": f"{watched}/mcp", "keys": step.keys, "route": rules_for_suite()}
    gateway = (start_replicas(programs, binary, step.replicas, **options) if step.replicas > 1
               else start_gateway(programs, binary, **options))
    with_key = ["--authorization", f"Bearer {KEYS['acme']}"] if step.keys else []
    watching = start_recorder(programs, "clients-recorder", gateway.origin, records["clients"], *with_key)
    for suite in step.suites:
        through = _run_suite(suite, f"{watching}/mcp", folder / suite)
        accepted = {
            (entry["scenario"], check): entry["reason"]
            for entry in EXPECTED["expected failures"] if (entry["server"], entry["suite"]) == (step.era, suite)
            for check in entry["checks"]
        }
        if suite == TASKS:
            _compare_tasks(step, through.of_tasks(), accepted, report)
        else:
            _compare(step, suite, alone[suite], through, accepted, report)
    judge(step.name, records["clients"], records["server"], report)


def _run_suite(suite: str, url: str, output: Path) -> Checks:
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    command = [NODE, CONFORMANCE, "server", "--url", url, *SUITES[suite], "-o", output]
    with (output / "suite.log").open("wb") as log:
        # The exit code is not asked: what counts is which checks were written down.
        subprocess.run([str(part) for part in command], stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                       timeout=SUITE_LIMIT, check=False)
    checks = Checks()
    for path in sorted(output.glob("server-*/checks.json")):
        scenario = NAMED.fullmatch(path.parent.name)[1]
        for check in json.loads(path.read_text(encoding="utf-8")):
            checks.counts[scenario, check["id"], check["status"]] += 1
            if check.get("errorMessage"):
                checks.messages[scenario, check["id"]] = check["errorMessage"]
    return checks


def _compare(
    step: Step, suite: str, alone: Checks, through: Checks, accepted: dict[tuple[str, str], str], report: Report,
) -> None:
    """Every scenario has to pass as over the fixture alone, but for the checks that are accepted to fail."""
    wrong = set(alone.passed - through.passed) | set(through.bad)
    for scenario in sorted({scenario for scenario, _ in alone.passed + through.bad}):
        faults = [
            f"{check}: {through.messages.get((scenario, check), 'missing')}"[:300]
            for of, check in sorted(wrong - set(accepted)) if of == scenario
        ] + [f"{check} passes, although it was expected not to" for of, check in sorted(set(accepted) - wrong) if of == scenario]
        known = sum(of == scenario for of, _ in accepted)
        claim = f"{suite}: {scenario} passes as over the fixture alone" + (f", but for {known} known checks" if known else "")
        report.add(step.name, claim, "failed" if faults else "passed", "; ".join(faults))


def _compare_tasks(step: Step, through: Checks, accepted: dict[tuple[str, str], str], report: Report) -> None:
    """The scenarios of the extension have to pass whole: the fixture does no tasks, so it is the gateway that does them."""
    expected = EXPECTED["tasks"]
    for scenario in sorted({*expected, *(scenario for scenario, _ in through.passed + through.bad)}):
        passed = sum(count for (of, _), count in through.passed.items() if of == scenario)
        wrong = {check for of, check in through.bad if of == scenario}
        known = {check for of, check in accepted if of == scenario}
        faults = [f"{check}: {through.messages.get((scenario, check), '')}"[:300] for check in sorted(wrong - known)]
        faults += [f"{check} passes, although it was expected not to" for check in sorted(known - wrong)]
        if passed + len(known) != expected.get(scenario, 0):
            faults.append(f"{passed} passed")
        report.add(step.name, f"{scenario}: {expected.get(scenario, 0)} checks pass" + (f", but for {len(known)} known" if known else ""),
                   "failed" if faults else "passed", "; ".join(faults))
