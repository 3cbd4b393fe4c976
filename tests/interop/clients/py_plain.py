"""The Python SDK 2.x as a client of 2026-07-28 that knows nothing of tasks: every call is answered in the call."""

import asyncio
from typing import Any

import httpx2
from checks import bare, begun, check, expect, expect_same, names_of, options, sure, tools
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from mcp.types import CreateMessageResult, ElicitResult, TextContent

questions: list[Any] = []


async def answer(_context: Any, params: Any) -> ElicitResult:
    questions.append(params)
    return ElicitResult(action="accept", content={"name": "Ada"})


async def sample(_context: Any, params: Any) -> CreateMessageResult:
    questions.append(params)
    return CreateMessageResult(role="assistant", model="none", content=TextContent(type="text", text="short"))


def connect(url: str, key: str | None = None) -> Client:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    transport = streamable_http_client(url, http_client=httpx2.AsyncClient(headers=headers, timeout=60))
    # No list of tools is kept, so that each one comes from the server.
    return Client(transport, elicitation_callback=answer, sampling_callback=sample, cache=None)


async def same_both_ways(there: Client, direct: Client, call: dict[str, Any], expected: int = 0) -> None:
    questions.clear()
    result = await there.call_tool(call["name"], call["arguments"])
    expect(len(questions) == expected, f"asked {len(questions)} times")
    expect_same(bare(result), bare(await direct.call_tool(call["name"], call["arguments"])), "result")


async def lists_tools(there: Client, direct: Client) -> None:
    listed, expected = await there.list_tools(), await direct.list_tools()
    expect_same(names_of(listed.tools), names_of(expected.tools), "listed tools")


async def reports_progress(there: Client) -> None:
    progress: list[float] = []

    async def hear(value: float, _total: float | None, _message: str | None) -> None:
        progress.append(value)

    await there.call_tool(tools["steps"]["name"], tools["steps"]["arguments"], progress_callback=hear)
    expect_same(sure(progress), sure([1, 2, 3, 4][: tools["progress"]]), "progress")


async def outcome(client: Client, call: dict[str, Any]) -> Any:
    try:
        return bare(await client.call_tool(call["name"], call["arguments"]))
    except MCPError as error:
        return error.error.code


async def counts_once(there: Client, direct: Client) -> None:
    call = tools["count"]
    counted = [(await client.call_tool(call["name"], call["arguments"])).content[0].text for client in (there, direct)]
    expect_same(counted, ["1", "2"], "counted")


async def leaves(there: Client) -> None:
    call = asyncio.create_task(there.call_tool(tools["cancel"]["name"], tools["cancel"]["arguments"]))
    await begun()
    call.cancel()
    try:
        await call
    except asyncio.CancelledError:
        return
    raise AssertionError("there was a result")


async def twenty_at_once(there: Client, direct: Client) -> None:
    name, arguments = tools["steps"]["name"], tools["steps"]["arguments"]
    straight = bare(await direct.call_tool(name, arguments))
    for result in await asyncio.gather(*(there.call_tool(name, arguments) for _ in range(20))):
        expect_same(bare(result), straight, "result")


async def era(there: Client) -> None:
    expect(there.session.protocol_version == "2026-07-28", f"version {there.session.protocol_version}")


async def main() -> None:
    async with connect(options.url, options.key) as there, connect(options.direct) as direct:
        await check("the era is modern", lambda: era(there))
        await check("list: the tools of the server", lambda: lists_tools(there, direct))
        for call in tools["same"]:
            await check(f"the result equals the direct one: {call['name']}", lambda call=call: same_both_ways(there, direct, call))
        await check("a slow call is answered in the call", lambda: same_both_ways(there, direct, tools["steps"]))
        for kind, name, times in (
            ("mirrored", "arguments that are repeated in headers", 0),
            ("ask", "a question is answered in rounds", 1),
            ("ask_twice", "two questions, one after the other", 2),
            ("sample", "a sampling request is answered in rounds", 1),
        ):
            if kind in tools:
                await check(name, lambda kind=kind, times=times: same_both_ways(there, direct, tools[kind], times))
        await check("progress reaches the caller", lambda: reports_progress(there))
        await check("isError comes as it is", lambda: same_both_ways(there, direct, tools["fail"]))
        await check("an unknown tool gives what the server gives", lambda: unknown(there, direct))
        if "count" in tools:
            await check("a tool runs once", lambda: counts_once(there, direct))
        await check("leaving the stream ends the call", lambda: leaves(there))
        await check("twenty calls at once", lambda: twenty_at_once(there, direct))


async def unknown(there: Client, direct: Client) -> None:
    expect_same(await outcome(there, tools["unknown"]), await outcome(direct, tools["unknown"]), "outcome")


asyncio.run(main())
