"""A FastMCP server with ordinary tools and no task support, served over streamable HTTP.

What its tools did is kept in a journal that a test reads at GET /journal, so that a side effect which
happened twice, or a cancel that never arrived, is seen from outside the protocol.
"""

import argparse
import asyncio
from dataclasses import dataclass

from fastmcp import Context, FastMCP
from fastmcp.exceptions import ToolError
from starlette.requests import Request
from starlette.responses import JSONResponse

server = FastMCP("plain-tools")
journal: list[dict[str, str]] = []
counts: dict[str, int] = {}


def note(event: str, label: str) -> None:
    journal.append({"event": event, "label": label})


@server.custom_route("/journal", methods=["GET"])
async def read_journal(_request: Request) -> JSONResponse:
    return JSONResponse(journal)


@server.tool
async def echo(text: str) -> str:
    """Returns the text."""
    return text


@server.tool
async def slow(seconds: float, label: str) -> dict[str, str | float]:
    """Sleeps, then says so; notes its start, its end and a cancel in the journal."""
    note("started", label)
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        note("cancelled", label)
        raise
    note("finished", label)
    return {"label": label, "slept": seconds}


@server.tool
async def steps(steps: int, seconds: float, context: Context) -> str:
    """Reports progress after each of its steps."""
    for step in range(1, steps + 1):
        await asyncio.sleep(seconds / steps)
        await context.report_progress(step, steps, f"step {step} of {steps}")
    return f"{steps} steps done"


@server.tool
async def fail(reason: str) -> str:
    """Fails with the given reason."""
    raise ToolError(f"failed as asked: {reason}")


@dataclass
class Person:
    name: str


@server.tool
async def ask(context: Context) -> str:
    """Asks for a name and greets."""
    answer = await context.elicit("Who is there?", response_type=Person)
    return f"Hello, {answer.data.name}!" if answer.action == "accept" else f"no name: {answer.action}"


@server.tool
async def ask_twice(context: Context) -> str:
    """Asks for two names, one after the other."""
    names = []
    for question in ("First name?", "Second name?"):
        answer = await context.elicit(question, response_type=Person)
        if answer.action != "accept":
            return f"no name: {answer.action}"
        names.append(answer.data.name)
    return f"Hello, {' and '.join(names)}!"


@server.tool
async def summarize(text: str, context: Context) -> str:
    """Has the client's model write a summary."""
    reply = await context.sample(f"Summarize: {text}", max_tokens=50)
    return f"Summary: {reply.text}"


@server.tool
async def count(label: str) -> int:
    """Counts how often it ran with this label."""
    counts[label] = counts.get(label, 0) + 1
    note("counted", label)
    return counts[label]


@server.tool
async def large(kilobytes: int) -> str:
    """Returns a text of that size, with characters of several bytes in it."""
    return ("0123456789 äöü 漢字 🙂 " * (kilobytes * 1024 // 32 + 1))[: kilobytes * 1024]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    port = parser.parse_args().port
    server.run(transport="http", host="127.0.0.1", port=port, path="/mcp", show_banner=False, log_level="WARNING")


if __name__ == "__main__":
    main()
