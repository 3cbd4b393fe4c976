"""`taskgate call --login` as an OAuth client, judged by the official suite's scenarios about authorization.

Every scenario has a resource and an authorization server of its own, which misbehave in one way each.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from stage.conformance import EXPECTED, LEGACY, MODERN
from stage.places import CONFORMANCE, NODE, RUNS, TESTS
from stage.report import Report

NAME = "conformance, taskgate call --login"
LIMIT = 60
AT_ONCE = 4
LISTED = re.compile(r"- (auth/\S+) \[(.+)\]")  # how the suite lists a scenario, with the versions that have it


def write_browser(folder: Path) -> Path:
    """A program that a client may start as the browser."""
    path = folder / "browser"
    path.write_text(f'#!/bin/sh\nexec "{NODE}" "{TESTS / "clients" / "browser.mjs"}" "$@"\n')
    path.chmod(0o755)
    return path


def run_login(binary: Path, report: Report) -> None:
    listed = subprocess.run([NODE, CONFORMANCE, "list"], capture_output=True, text=True, timeout=LIMIT, check=True).stdout
    scenarios = [(version, name) for name, versions in LISTED.findall(listed)
                 for version in (LEGACY, MODERN) if version in versions.split(",")]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(lambda scenario: _run_scenario(*scenario, binary, report), scenarios))
    expected = EXPECTED["login"]["scenarios"]
    report.add(NAME, f"there are {expected} scenarios", "passed" if len(scenarios) == expected else "failed",
               "" if len(scenarios) == expected else f"{len(scenarios)}")


def _run_scenario(version: str, name: str, binary: Path, report: Report) -> None:
    folder = RUNS / "conformance-login" / version / name.replace("/", "-")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    client = shlex.join([sys.executable, str(TESTS / "clients" / "login.py")])
    command = [NODE, CONFORMANCE, "client", "--command", client, "--scenario", name, "--spec-version", version, "-o", folder]
    try:
        with (folder / "suite.log").open("wb") as log:
            done = subprocess.run([str(part) for part in command], stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                                  timeout=LIMIT, check=False, env=_environment(binary, folder))
    except subprocess.TimeoutExpired as late:
        report.add(NAME, f"{version}: {name}", "failed", str(late))
        return
    faults, known = _faults(version, name, folder, done.returncode)
    claim = f"{version}: {name}" + (f", but for {len(known)} known checks" if known else "")
    report.add(NAME, claim, "failed" if faults else "passed", "; ".join(faults))


def _faults(version: str, name: str, folder: Path, code: int) -> tuple[list[str], set[str]]:
    """What is wrong, and which checks may fail for a reason in conformance.json."""
    checks = [check for path in folder.rglob("checks.json") for check in json.loads(path.read_text(encoding="utf-8"))]
    bad = {check["id"]: check["description"] for check in checks if check["status"] in ("FAILURE", "WARNING")}
    known = {check for entry in EXPECTED["login"]["expected failures"]
             if entry["scenario"] == name and version in entry["suites"] for check in entry["checks"]}
    faults = [f"{check}: {bad[check]}" for check in sorted(set(bad) - known)]
    faults += [f"{check} passes, although it was expected not to" for check in sorted(known - set(bad))]
    if not any(check["status"] == "SUCCESS" for check in checks):
        faults.append("nothing was checked")
    if code != 0 and not bad:
        faults.append(f"the suite ended with {code}")
    return faults, known


def _environment(binary: Path, folder: Path) -> dict[str, str]:
    return {**os.environ, "TASKGATE": str(binary), "BROWSER": str(write_browser(folder)), "ACCOUNT": "alice"}
