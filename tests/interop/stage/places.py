"""Where things are: the sources of these tests, what is installed for them, and what a run leaves behind."""

from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
PROJECT = TESTS.parent.parent
INSTALLED = PROJECT / ".interop"
MODULES = INSTALLED / "node_modules"
NODE = MODULES / "node" / "bin" / "node"
PYTHON = INSTALLED / "venv" / "bin" / "python"
MODERN_PYTHON = INSTALLED / "venv-modern" / "bin" / "python"
RMCP = INSTALLED / "rmcp" / "debug" / "taskgate-interop-rmcp"
RUNS = INSTALLED / "runs"
EVERYTHING = MODULES / "@modelcontextprotocol" / "server-everything" / "dist" / "index.js"
CONFORMANCE = MODULES / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
