"""FastMCP 3.4 as a task client: call_tool(..., task=True).

It never opens tasks/result while input is required, so a question reaches it on the session's GET stream or not at all.
"""

import asyncio
import warnings
from collections.abc import Awaitable
from typing import Any

from checks import (
    INVALID_PARAMS, METHOD_NOT_FOUND, NOBODY, begun, check, expect, expect_same, expected_support, options, policy,
    related_task, tools, without_related_task,
)
from fastmcp import Client
from fastmcp.client.elicitation import ElicitResult
from fastmcp.client.tasks import ToolTask
from fastmcp.client.transports import StreamableHttpTransport
from fastmcp.exceptions import ToolError
from mcp import McpError, types

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
    return Client(transport, elicitation_handler=answer, sampling_handler=sample, roots=["file:///interop"], timeout=30)


async def start(client: Client, call: dict[str, Any]) -> ToolTask:
    task = await client.call_tool(call["name"], call["arguments"], task=True, raise_on_error=False)
    expect(not task.returned_immediately, "answered plainly instead of with a task")
    return task


async def raw_result(client: Client, task: ToolTask) -> types.CallToolResult:
    return types.CallToolResult.model_validate(await client.get_task_result(task.task_id))


def as_fetched(result: types.CallToolResult) -> types.CallToolResult:
    """A result as this client's get_task_result would show it: it leaves out every member that is null."""
    return types.CallToolResult.model_validate(result.model_dump(exclude_none=True, exclude_unset=True, by_alias=True))


async def refused(request: Awaitable[Any], code: int) -> str:
    try:
        reply = await request
    except McpError as error:
        expect(error.error.code == code, f"expected error {code}, got {error.error}")
        return error.error.message
    raise AssertionError(f"expected error {code}, got {reply}")


async def same_both_ways(there: Client, direct: Client, call: dict[str, Any], expected: int = 0) -> None:
    """Calls a tool through a task and straight; both must give the same."""
    questions.clear()
    task = await start(there, call)
    result = await task.result()
    expect(len(questions) == expected, f"asked {len(questions)} times")
    for question in questions:
        expect(related_task(question) == task.task_id, "a question does not name its task")
    straight = await direct.call_tool(call["name"], call["arguments"], raise_on_error=False)
    expect_same(result.data, straight.data, "data")
    expect_same(result.structured_content, straight.structured_content, "structured content")
    raw = without_related_task(await raw_result(there, task))
    fetched = as_fetched(await direct.call_tool_mcp(call["name"], call["arguments"]))
    expect_same(raw, without_related_task(fetched), "result")


async def lists_tools(there: Client, direct: Client) -> None:
    listed, expected = await there.list_tools(), await direct.list_tools()
    unsupported = [t.name for t in listed if not t.execution or t.execution.taskSupport != "optional"]
    expect(not unsupported, f"not optional: {unsupported}")
    expect_same([t.name for t in listed], [t.name for t in expected], "listed tools")


async def cancels(there: Client) -> None:
    task = await start(there, tools["cancel"])
    # What the server asks of the session just then is asked within the task.
    expect((await there.get_task_status(task.task_id)).status in ("working", "input_required"), "not running")
    await begun()
    await task.cancel()
    expect((await task.wait(state="cancelled", timeout=10)).status == "cancelled", "not cancelled when read again")
    await refused(there.cancel_task(task.task_id), INVALID_PARAMS)


async def told_of_the_end(there: Client) -> None:
    task = await start(there, tools["steps"])
    heard: list[str] = []
    ended = asyncio.Event()

    def hear(status: types.GetTaskResult) -> None:
        heard.append(status.status)
        if status.status == "completed":
            ended.set()

    task.on_status_change(hear)
    await asyncio.wait_for(ended.wait(), 20)
    await task.result()
    expect(heard.count("completed") == 1, f"told {heard}")


async def fails(there: Client, direct: Client) -> None:
    call = tools["fail"]
    task = await there.call_tool(call["name"], call["arguments"], task=True)
    try:
        await task.result()
    except ToolError as error:
        expect(call["says"] in str(error), f"says {error}")
    else:
        raise AssertionError("no error raised")
    status = await there.get_task_status(task.task_id)
    expect(status.status == "failed", f"ended as {status.status}")
    raw = await raw_result(there, task)
    straight = await direct.call_tool_mcp(call["name"], call["arguments"])
    expect(raw.isError, "isError is lost")
    expect_same(without_related_task(raw), without_related_task(straight), "result")


async def counts_once(there: Client) -> None:
    task = await start(there, tools["count"])
    result = await task.result()
    expect(result.content[0].text == "1", f"counted {result.content[0].text}")


async def unknown_task(there: Client) -> None:
    for ask in (there.get_task_status, there.cancel_task, there.get_task_result):
        await refused(ask(NOBODY), INVALID_PARAMS)


async def outlives_session(there: Client, direct: Client) -> None:
    call = tools["steps"]
    async with connect(options.url, options.key) as first:
        task = await start(first, call)
    result = types.CallToolResult.model_validate(await there.get_task_result(task.task_id))
    straight = await direct.call_tool_mcp(call["name"], call["arguments"])
    expect_same(without_related_task(result), without_related_task(straight), "result")


async def list_request(client: Client) -> types.ListTasksResult:
    """Sends tasks/list by hand: the client's own list_tasks falls back to a memory of its own when refused."""
    return await client.session.send_request(types.ClientRequest(types.ListTasksRequest()), types.ListTasksResult)


async def lists_tasks(there: Client) -> None:
    task = await start(there, tools["same"][0])
    await task.result()
    listed, cursor = [], None
    while page := await there.list_tasks(cursor, limit=20):
        listed.extend(page["tasks"])
        if (cursor := page.get("nextCursor")) is None:
            break
    expect([t["taskId"] for t in listed].count(task.task_id) == 1, "not listed once")


async def stranger(there: Client) -> None:
    task = await start(there, tools["same"][0])
    await task.result()
    async with connect(options.url, options.other_key) as other:
        expect(task.task_id not in [t.taskId for t in (await list_request(other)).tasks], "listed for another tenant")
        for ask in (other.get_task_status, other.cancel_task, other.get_task_result):
            foreign, missing = await refused(ask(task.task_id), INVALID_PARAMS), await refused(ask(NOBODY), INVALID_PARAMS)
            expect(foreign.replace(task.task_id, NOBODY) == missing, f"told apart: {foreign}")


async def lists_by_policy(there: Client, direct: Client) -> None:
    shown = {t.name: t.execution and t.execution.taskSupport for t in await there.list_tools()}
    expect_same(shown, expected_support([t.name for t in await direct.list_tools()]), "taskSupport")


async def required_as_task(there: Client, direct: Client) -> None:
    call = policy["required"]
    task = await start(there, call)
    await task.result()
    straight = await direct.call_tool_mcp(call["name"], call["arguments"])
    expect_same(without_related_task(await raw_result(there, task)), without_related_task(straight), "result")


async def forbidden_plainly(there: Client, direct: Client) -> None:
    call = policy["forbidden"]
    straight = await direct.call_tool_mcp(call["name"], call["arguments"])
    expect_same((await there.call_tool_mcp(call["name"], call["arguments"])).model_dump(), straight.model_dump(), "result")


async def denied(there: Client) -> None:
    call = policy["denied"]
    await refused(there.call_tool_mcp(call["name"], call["arguments"]), INVALID_PARAMS)
    await refused(start(there, call), INVALID_PARAMS)


async def check_policy(there: Client, direct: Client) -> None:
    """What the route's rules for its tools mean to a client."""
    plain, task = policy["refused"]["required"], policy["refused"]["forbidden"]
    await check("list: tools are shown as the route has them", lambda: lists_by_policy(there, direct))
    await check("required: runs as a task", lambda: required_as_task(there, direct))
    await check("required: refused without a task", lambda: refused(
        there.call_tool_mcp(plain["name"], plain["arguments"]), METHOD_NOT_FOUND))
    await check("forbidden: runs plainly", lambda: forbidden_plainly(there, direct))
    await check("forbidden: refused as a task", lambda: refused(start(there, task), METHOD_NOT_FOUND))
    await check("denied: unknown, with a task and without", lambda: denied(there))


async def check_tasks(there: Client, direct: Client) -> None:
    await check("list: every tool may run as a task", lambda: lists_tools(there, direct))
    for call in tools["same"]:
        name = f"task result equals the direct one: {call['name']}"
        await check(name, lambda call=call: same_both_ways(there, direct, call))
    await check("a cancelled task stays cancelled", lambda: cancels(there))
    if "ask" in tools:
        await check("a question is answered inside the task", lambda: same_both_ways(there, direct, tools["ask"], 1))
    if "ask_twice" in tools:
        await check("two questions, one after the other",
                    lambda: same_both_ways(there, direct, tools["ask_twice"], 2))
    if "sample" in tools:
        await check("a sampling request is answered inside the task",
                    lambda: same_both_ways(there, direct, tools["sample"], 1))
    await check("isError: the task fails and keeps the result", lambda: fails(there, direct))
    if "count" in tools:
        await check("a tool runs once", lambda: counts_once(there))
    await check("an unknown task is refused", lambda: unknown_task(there))
    await check("a task outlives the session that made it", lambda: outlives_session(there, direct))
    if not options.native:
        await check("status notifications tell of the end", lambda: told_of_the_end(there))
        if options.key is None:
            await check("tasks/list is not offered to unknown callers",
                        lambda: refused(list_request(there), METHOD_NOT_FOUND))
    if options.key is not None:
        await check("tasks/list shows the caller every task of its own", lambda: lists_tasks(there))
    if options.other_key is not None:
        await check("another tenant sees nothing", lambda: stranger(there))


async def main() -> None:
    async with connect(options.url, options.key) as there, connect(options.direct) as direct:
        await (check_policy if options.policy else check_tasks)(there, direct)


asyncio.run(main())
