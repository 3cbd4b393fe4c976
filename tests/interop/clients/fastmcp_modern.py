"""FastMCP 4 with its tasks: a call that the server makes a task is driven to its end under the hood, or by a handle."""

import asyncio
import warnings
from typing import Any

from checks import INVALID_PARAMS, NOBODY, bare, begun, check, expect, expect_same, names_of, options, tools
from fastmcp import Client
from fastmcp.client.elicitation import ElicitResult
from fastmcp.client.transports import StreamableHttpTransport
from fastmcp.exceptions import ToolError
from fastmcp_tasks.client import ToolTask, _send_cancel, _send_get, _send_update, call_tool_task
from mcp import MCPError

TRIES = 5
warnings.filterwarnings("ignore", message=".*deprecated.*")
questions: list[Any] = []


async def answer(_message: str, response_type: type | None, params: Any, _context: Any) -> Any:
    questions.append(params)
    return ElicitResult(action="accept", content={"name": "Ada"})


async def sample(_messages: Any, params: Any, _context: Any) -> str:
    questions.append(params)
    return "short"


def connect(url: str, key: str | None = None) -> Client:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    transport = StreamableHttpTransport(url, headers=headers)
    return Client(transport, elicitation_handler=answer, sampling_handler=sample, timeout=30)


async def start(client: Client, call: dict[str, Any]) -> ToolTask:
    """Starts a call that has to become a task."""
    return await call_tool_task(client, call["name"], call["arguments"], raise_on_error=False)


async def same(there: Client, direct: Client, call: dict[str, Any], expected: int = 0) -> None:
    """Calls a tool as an application does, which never learns whether it was a task."""
    questions.clear()
    result = await there.call_tool(call["name"], call["arguments"], raise_on_error=False)
    expect(len(questions) == expected, f"asked {len(questions)} times")
    straight = await direct.call_tool(call["name"], call["arguments"], raise_on_error=False)
    for member in ("data", "structured_content", "is_error"):
        expect_same(getattr(result, member), getattr(straight, member), member)
    expect_same([bare(block) for block in result.content], [bare(block) for block in straight.content], "content")


async def lists_tools(there: Client, direct: Client) -> None:
    listed, expected = await there.list_tools(), await direct.list_tools()
    expect_same(names_of(listed), names_of(expected), "listed tools")


async def answers_plainly(there: Client) -> None:
    for _ in range(TRIES):  # a machine that is busy may make it slow
        try:
            task = await start(there, tools["same"][0])
        except ToolError as error:
            expect("did not run as a task" in str(error), str(error))
            return
    raise AssertionError(f"a task: {task.task_id}")


async def becomes_a_task(there: Client, direct: Client, call: dict[str, Any]) -> None:
    task = await start(there, call)
    expect((await task.status()).status == "working", "not working")
    result = await task.result()
    straight = await direct.call_tool(call["name"], call["arguments"])
    expect_same([bare(block) for block in result.content], [bare(block) for block in straight.content], "content")
    expect((await task.status()).status == "completed", "not completed")


async def cancels(there: Client) -> None:
    task = await start(there, tools["cancel"])
    await begun()
    await task.cancel()
    expect((await task.wait(timeout=10)).status == "cancelled", "not cancelled")
    await task.cancel()
    expect((await task.status()).status == "cancelled", "not cancelled when read again")


async def fails(there: Client, direct: Client) -> None:
    call = tools["fail"]
    try:
        await there.call_tool(call["name"], call["arguments"])
    except ToolError as error:
        expect(call["says"] in str(error), f"says {error}")
    else:
        raise AssertionError("no error raised")
    await same(there, direct, call)


async def code_of(request: Any) -> int | None:
    try:
        await request
    except MCPError as error:
        return error.error.code
    except ToolError as error:
        return str(error)
    return None


async def unknown_tool(there: Client, direct: Client) -> None:
    call = tools["unknown"]
    codes = [await code_of(client.call_tool(call["name"], call["arguments"])) for client in (there, direct)]
    expect(codes[0] is not None and codes[0] == codes[1], f"outcomes {codes}")


async def unknown_task(there: Client) -> None:
    for request in (_send_get(there.session, NOBODY), _send_cancel(there.session, NOBODY), _send_update(there.session, NOBODY, {})):
        expect(await code_of(request) == INVALID_PARAMS, "not refused")


async def counts_once(there: Client, direct: Client) -> None:
    call = tools["count"]
    counted = [(await client.call_tool(call["name"], call["arguments"])).content[0].text for client in (there, direct)]
    expect_same(counted, ["1", "2"], "counted")


async def twenty_at_once(there: Client, direct: Client) -> None:
    tasks = await asyncio.gather(*(start(there, tools["steps"]) for _ in range(20)))
    expect(len({task.task_id for task in tasks}) == 20, "task ids repeat")
    straight = await direct.call_tool(tools["steps"]["name"], tools["steps"]["arguments"])
    for result in await asyncio.gather(*(task.result() for task in tasks)):
        expect_same([bare(block) for block in result.content], [bare(block) for block in straight.content], "content")


async def outlives(there: Client) -> None:
    async with connect(options.url, options.key) as first:
        task = await start(first, tools["steps"])
    async with asyncio.timeout(15):
        while (found := await _send_get(there.session, task.task_id)).status == "working":
            await asyncio.sleep(0.1)
    expect(found.status == "completed", f"ended as {found.status}")


async def stranger(there: Client) -> None:
    task = await start(there, tools["steps"])
    async with connect(options.url, options.other_key) as other:
        for request in (_send_get(other.session, task.task_id), _send_cancel(other.session, task.task_id)):
            expect(await code_of(request) == INVALID_PARAMS, "not refused")
    expect((await task.result()).is_error is False, "lost by its owner")


async def era(there: Client) -> None:
    expect(there.session.protocol_version == "2026-07-28", f"version {there.session.protocol_version}")


async def main() -> None:
    async with connect(options.url, options.key) as there, connect(options.direct) as direct:
        await check("the era is modern", lambda: era(there))
        await check("list: the tools of the server", lambda: lists_tools(there, direct))
        await check("a quick call is answered plainly", lambda: answers_plainly(there))
        await check("a slow call becomes a task, with the result of the direct call", lambda: becomes_a_task(there, direct, tools["steps"]))
        for call in tools["same"]:
            await check(f"the result equals the direct one: {call['name']}", lambda call=call: same(there, direct, call))
        for kind, name, times in (("ask", "a question is answered", 1), ("ask_twice", "two questions, one after the other", 2)):
            if kind in tools:
                await check(name, lambda kind=kind, times=times: same(there, direct, tools[kind], times))
        await check("a cancelled task stays cancelled", lambda: cancels(there))
        await check("isError comes as it is", lambda: fails(there, direct))
        await check("an unknown tool gives what the server gives", lambda: unknown_tool(there, direct))
        if "count" in tools:
            await check("a tool runs once", lambda: counts_once(there, direct))
        await check("twenty tasks at once", lambda: twenty_at_once(there, direct))
        await check("an unknown task is refused", lambda: unknown_task(there))
        await check("a task outlives the client that made it", lambda: outlives(there))
        if options.other_key is not None:
            await check("another tenant sees nothing", lambda: stranger(there))


asyncio.run(main())
