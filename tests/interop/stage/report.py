"""Collects checks and prints them, with a summary at the end."""

import json
import os
from dataclasses import dataclass, field

DETAIL = 700
IN_CI = os.environ.get("CI", "").lower() not in ("", "0", "false")


@dataclass
class Report:
    """Counts checks. In CI nothing may be skipped, so a skip counts as a failure there."""

    passed: int = 0
    skipped: int = 0
    failures: list[str] = field(default_factory=list)

    def add(self, where: str, check: str, status: str, detail: str = "") -> None:
        if status == "skipped" and IN_CI:
            status, detail = "failed", f"skipped, which CI does not allow: {detail}"
        detail = " ".join(detail.split())[:DETAIL]
        line = f"{where}: {check}" + (f": {detail}" if detail else "")
        match status:
            case "passed":
                self.passed += 1
            case "skipped":
                self.skipped += 1
            case _:
                self.failures.append(line)
        print(f"{'ok' if status == 'passed' else status.upper():8}{line}", flush=True)

    def add_lines(self, where: str, output: str) -> int:
        """Adds what a client or the judge printed, a JSON line for each check; returns how many there were."""
        lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
        for line in lines:
            self.add(where, line["check"], line["status"], line.get("detail", ""))
        return len(lines)

    def summary(self) -> str:
        if self.failures:
            print("\nFailed:")
            for failure in self.failures:
                print(f"  {failure}")
        counts = f"{self.passed} passed, {len(self.failures)} failed"
        return f"{counts}, {self.skipped} skipped" if self.skipped else counts

    @property
    def good(self) -> bool:
        return not self.failures and self.passed > 0
