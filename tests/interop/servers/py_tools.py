"""The tools of plain_tools.py on the Python SDK 2.x, which serves both eras from one endpoint.

Its tools ask by naming what they need: the SDK asks the client for it, in rounds or by requests, before the tool runs.
"""

import argparse
import asyncio
from typing import Annotated

from mcp.server.mcpserver import Context, Elicit, MCPServer, Resolve, Sample
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import CreateMessageResult, SamplingMessage, TextContent
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import JSONResponse

server = MCPServer("py-tools")
journal: list[dict[str, str]] = []
counts: dict[str, int] = {}


def note(event: str, label: str) -> None:
    journal.append({"event": event, "label": label})


@server.custom_route("/journal", methods=["GET"])
async def read_journal(_request: Request) -> JSONResponse:
    return JSONResponse(journal)


@server.tool()
async def echo(text: str) -> str:
    """Returns the text."""
    return text


@server.tool()
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


@server.tool()
async def steps(steps: int, seconds: float, context: Context) -> str:
    """Reports progress after each of its steps."""
    for step in range(1, steps + 1):
        await asyncio.sleep(seconds / steps)
        await context.report_progress(step, steps, f"step {step} of {steps}")
    return f"{steps} steps done"


@server.tool()
async def fail(reason: str) -> str:
    """Fails with the given reason."""
    raise ToolError(f"failed as asked: {reason}")


class Person(BaseModel):
    name: str


async def first_name() -> Elicit[Person]:
    return Elicit("Who is there?", Person)


async def second_name(first: Annotated[Person, Resolve(first_name)]) -> Elicit[Person]:
    return Elicit(f"And who comes with {first.name}?", Person)


@server.tool()
async def ask(person: Annotated[Person, Resolve(first_name)]) -> str:
    """Asks for a name and greets."""
    return f"Hello, {person.name}!"


@server.tool()
async def ask_twice(first: Annotated[Person, Resolve(first_name)], second: Annotated[Person, Resolve(second_name)]) -> str:
    """Asks for two names, one after the other."""
    return f"Hello, {first.name} and {second.name}!"


async def summary(text: str) -> Sample:
    return Sample([SamplingMessage(role="user", content=TextContent(type="text", text=text))], max_tokens=50)


@server.tool()
async def summarize(text: str, reply: Annotated[CreateMessageResult, Resolve(summary)]) -> str:
    """Has the client's model write a summary."""
    return f"Summary: {reply.content.text}"


@server.tool()
async def count(label: str) -> int:
    """Counts how often it ran with this label."""
    counts[label] = counts.get(label, 0) + 1
    note("counted", label)
    return counts[label]


@server.tool()
async def large(kilobytes: int) -> str:
    """Returns a text of that size, with characters of several bytes in it."""
    return ("0123456789 äöü 漢字 🙂 " * (kilobytes * 1024 // 32 + 1))[: kilobytes * 1024]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    server.run(transport="streamable-http", host="127.0.0.1", port=parser.parse_args().port)


if __name__ == "__main__":
    main()
