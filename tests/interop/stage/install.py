"""Installs the pinned npm, PyPI and crates.io packages into .interop/, unless they are there already."""

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

from stage.places import INSTALLED, MODERN_PYTHON, MODULES, NODE, PYTHON, RMCP, TESTS

LIMIT = 900


class Missing(Exception):
    """A program that is needed is not on this machine."""


def _digest(*files: Path) -> str:
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()


def _run(*command: str | Path) -> None:
    subprocess.run([str(part) for part in command], cwd=INSTALLED, check=True, timeout=LIMIT, stdin=subprocess.DEVNULL)


def _npm() -> None:
    sources = [TESTS / "package.json", TESTS / "package-lock.json"]
    stamp = INSTALLED / "npm.stamp"
    if not (NODE.exists() and stamp.exists() and stamp.read_text() == _digest(*sources)):
        if not shutil.which("npm"):
            raise Missing("npm")
        stamp.unlink(missing_ok=True)
        for source in sources:
            shutil.copy(source, INSTALLED)
        _run("npm", "ci", "--no-audit", "--no-fund", "--loglevel=error")
        _run(NODE, "--version")
        stamp.write_text(_digest(*sources))
    # Modules are looked up from where a script lies, so the scripts get a link to them.
    link = TESTS / "node_modules"
    if link.is_symlink() or not link.exists():
        link.unlink(missing_ok=True)
        link.symlink_to(MODULES, target_is_directory=True)


def _python(python: Path, source: Path) -> None:
    """The packages of a file in an environment of its own: the two generations of the SDK can't share one."""
    environment = python.parent.parent
    stamp = INSTALLED / f"{environment.name}.stamp"
    if python.exists() and stamp.exists() and stamp.read_text() == _digest(source):
        return
    stamp.unlink(missing_ok=True)
    try:
        _run(sys.executable, "-m", "venv", "--clear", environment)
    except subprocess.CalledProcessError as error:
        raise Missing("python's venv module") from error
    _run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "-r", source)
    stamp.write_text(_digest(source))


def _rmcp() -> None:
    """The client in Rust, which is not part of taskgate's own workspace; cargo knows whether there is anything to do."""
    if not shutil.which("cargo"):
        raise Missing("cargo")
    source = TESTS / "clients" / "rmcp" / "Cargo.toml"
    _run("cargo", "build", "--quiet", "--locked", "--manifest-path", source, "--target-dir", RMCP.parent.parent)


def install() -> None:
    """Raises Missing where a program is lacking, CalledProcessError where an installation fails."""
    INSTALLED.mkdir(exist_ok=True)
    _npm()
    _python(PYTHON, TESTS / "requirements.txt")
    _python(MODERN_PYTHON, TESTS / "requirements-modern.txt")
    _rmcp()
