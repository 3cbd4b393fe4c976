"""Starts programs, waits until they are ready, and stops what it started, by process id."""

import os
import random
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

READY_LIMIT = 60.0
STOP_LIMIT = 15.0
_handed_out: set[int] = set()


class NotReady(Exception):
    """A program ended, or stayed silent, before it was ready."""


def free_port() -> int:
    """A port outside the range that the kernel gives to outgoing connections, so that none of those takes it."""
    while True:
        port = random.randint(20000, 32000)
        if port in _handed_out:
            continue
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        _handed_out.add(port)
        return port


def answers(url: str) -> bool:
    """Whether a GET of the URL is answered with 200."""
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return response.status == 200
    except (OSError, urllib.error.URLError):
        return False


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except OSError:
        return False
    return True


class Programs:
    """A context that holds running programs; leaving it stops them, last started first."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._running: list[tuple[str, subprocess.Popen[bytes]]] = []
        logs.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> "Programs":
        return self

    def __exit__(self, *_: object) -> None:
        while self._running:
            self.stop(self._running[-1][0])

    def log(self, name: str) -> Path:
        return self._logs / f"{name}.log"

    def start(self, name: str, command: list[str | Path], ready: Callable[[], bool], **environment: str) -> None:
        """Starts a program in a process group of its own and returns when `ready` says so."""
        with self.log(name).open("wb") as log:
            process = subprocess.Popen(
                [str(part) for part in command],
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                env={**os.environ, **environment}, start_new_session=True,
            )
        self._running.append((name, process))
        deadline = time.monotonic() + READY_LIMIT
        while not ready():
            if process.poll() is not None:
                raise NotReady(f"{name} ended with {process.returncode}: {self.tail(name)}")
            if time.monotonic() > deadline:
                raise NotReady(f"{name} was not ready within {READY_LIMIT:.0f} s: {self.tail(name)}")
            time.sleep(0.05)

    def tail(self, name: str, size: int = 800) -> str:
        return self.log(name).read_text(encoding="utf-8", errors="replace")[-size:].strip()

    def stop(self, name: str) -> int:
        """Asks the program to end, then its whole group to; returns the exit code."""
        process = next(process for other, process in self._running if other == name)
        self._running = [(other, kept) for other, kept in self._running if other != name]
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(STOP_LIMIT)
            except subprocess.TimeoutExpired:
                pass
        try:
            os.killpg(process.pid, signal.SIGKILL)  # what the program left behind, or itself where it would not end
        except ProcessLookupError:
            pass
        return process.wait()
