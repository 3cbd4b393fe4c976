"""The Python SDK 1.x as a task client: session.experimental."""

import asyncio
import contextlib
import warnings
from collections.abc import AsyncIterator, Awaitable
from datetime import timedelta
from typing import Any

from checks import (
    INVALID_PARAMS, METHOD_NOT_FOUND, NOBODY, arrived, begun, check, expect, expect_same, expected_support, options,
    policy, related_task, sure, tools, without_related_task,
)
from mcp import ClientSession, McpError, types
from mcp.client.streamable_http import streamablehttp_client

warnings.filterwarnings("ignore", message=".*experimental tasks API is deprecated.*")
Result = types.CallToolResult


class Connection:
    """A session that answers every question, and notes what it was asked and told."""

    def __init__(self) -> None:
        self.session: ClientSession
        self.capabilities: types.ServerCapabilities
        self.questions: list[Any] = []
        self.progress: list[tuple[str | int, float]] = []

    async def elicit(self, _context: Any, question: types.ElicitRequestParams) -> types.ElicitResult:
        self.questions.append(question)
        return types.ElicitResult(action="accept", content={"name": "Ada"})

    async def sample(self, _context: Any, question: types.CreateMessageRequestParams) -> types.CreateMessageResult:
        self.questions.append(question)
        content = types.TextContent(type="text", text="short")
        return types.CreateMessageResult(role="assistant", model="none", content=content)

    async def roots(self, _context: Any) -> types.ListRootsResult:
        return types.ListRootsResult(roots=[types.Root(uri="file:///interop", name="interop")])

    async def hear(self, message: Any) -> None:
        notification = getattr(message, "root", None)
        if isinstance(notification, types.ProgressNotification):
            self.progress.append((notification.params.progressToken, notification.params.progress))

    async def create(self, call: dict[str, Any], **more: Any) -> types.Task:
        created = await self.session.experimental.call_tool_as_task(call["name"], call["arguments"], **more)
        expect(created.task.status == "working", f"created as {created.task.status}")
        return created.task

    async def poll(self, task_id: str) -> tuple[types.GetTaskResult, Result | None]:
        """Polls to the end; while input is required it waits on tasks/result, as this SDK's docs have it."""
        status, result = None, None
        async for status in self.session.experimental.poll_task(task_id):
            if status.status == "input_required":
                result = await self.result(task_id)
        assert status is not None
        return status, result

    async def result(self, task_id: str) -> Result:
        return await self.session.experimental.get_task_result(task_id, Result)


@contextlib.asynccontextmanager
async def connect(url: str, key: str | None = None) -> AsyncIterator[Connection]:
    connection = Connection()
    headers = {"Authorization": f"Bearer {key}"} if key else None
    async with (
        streamablehttp_client(url, headers=headers) as (read, write, _),
        ClientSession(
            read, write,
            read_timeout_seconds=timedelta(seconds=30),
            elicitation_callback=connection.elicit,
            sampling_callback=connection.sample,
            list_roots_callback=connection.roots,
            message_handler=connection.hear,
        ) as session,
    ):
        connection.session = session
        connection.capabilities = (await session.initialize()).capabilities
        yield connection


async def refused(request: Awaitable[Any], code: int) -> str:
    try:
        reply = await request
    except McpError as error:
        expect(error.error.code == code, f"expected error {code}, got {error.error}")
        return error.error.message
    raise AssertionError(f"expected error {code}, got {reply}")


async def outcome(request: Awaitable[Result]) -> dict[str, Any]:
    """Either the result or the error of a request, so that both can be compared."""
    try:
        return {"result": without_related_task(await request)}
    except McpError as error:
        return {"error": error.error.model_dump(exclude_unset=True)}


async def same_both_ways(there: Connection, direct: Connection, call: dict[str, Any], questions: int = 0) -> None:
    """Calls a tool through a task and straight; both must give the same."""
    there.questions.clear()
    task = await there.create(call)
    status, _ = await there.poll(task.taskId)
    expect(status.status == "completed", f"ended as {status.status}: {status.statusMessage}")
    result = await there.result(task.taskId)
    expect(related_task(result) == task.taskId or options.native, "the result does not name its task")
    expect(len(there.questions) == questions, f"asked {len(there.questions)} times")
    for question in there.questions:
        expect(related_task(question) == task.taskId, "a question does not name its task")
    straight = without_related_task(await direct.session.call_tool(call["name"], call["arguments"]))
    expect_same(without_related_task(result), straight, "result of the task")
    again = await there.result(task.taskId)
    expect_same(without_related_task(again), straight, "result read again")


def without_mirrors(value: Any) -> Any:
    """A tool without what a server of 2026-07-28 says of the headers that mirror its arguments: here it means nothing."""
    if isinstance(value, list):
        return [without_mirrors(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {key: without_mirrors(item) for key, item in value.items() if key != "x-mcp-header"}


async def lists_tools(there: Connection, direct: Connection) -> None:
    expect(there.capabilities.tasks and there.capabilities.tasks.requests, "no tasks capability")
    listed = (await there.session.list_tools()).tools
    unsupported = [t.name for t in listed if not t.execution or t.execution.taskSupport != "optional"]
    expect(not unsupported, f"not optional: {unsupported}")
    expected = (await direct.session.list_tools()).tools
    expect_same(*([without_mirrors(t.model_dump(mode="json", exclude={"execution"})) for t in side] for side in (listed, expected)),
                "listed tools")


async def progresses(there: Connection) -> None:
    there.progress.clear()
    task = await there.create(tools["steps"], meta={"progressToken": "my-token"})
    status, _ = await there.poll(task.taskId)
    expect(status.status == "completed", f"ended as {status.status}")
    expected = sure([("my-token", float(step + 1)) for step in range(tools["progress"])])
    await arrived(lambda: len(there.progress) >= len(expected))
    expect_same(sure(there.progress), expected, "progress")


async def cancels(there: Connection) -> None:
    tasks = there.session.experimental
    task = await there.create(tools["cancel"])
    # What the server asks of the session just then is asked within the task.
    expect((await tasks.get_task(task.taskId)).status in ("working", "input_required"), "not running")
    await begun()
    cancelled = await tasks.cancel_task(task.taskId)
    expect(cancelled.status == "cancelled", f"cancel answered {cancelled.status}")
    expect((await tasks.get_task(task.taskId)).status == "cancelled", "not cancelled when read again")
    await refused(tasks.cancel_task(task.taskId), INVALID_PARAMS)
    if not options.native:
        await refused(there.result(task.taskId), INVALID_PARAMS)


async def fails(there: Connection, direct: Connection) -> None:
    call = tools["fail"]
    task = await there.create(call)
    status, _ = await there.poll(task.taskId)
    expect(status.status == "failed", f"ended as {status.status}")
    result = await there.result(task.taskId)
    expect(result.isError, "isError is lost")
    straight = await direct.session.call_tool(call["name"], call["arguments"])
    expect_same(without_related_task(result), without_related_task(straight), "result")
    if not options.native:
        expect(call["says"] in (status.statusMessage or ""), f"statusMessage: {status.statusMessage}")


async def unknown_tool(there: Connection, direct: Connection) -> None:
    call = tools["unknown"]
    task = await there.create(call)
    through = await outcome(there.result(task.taskId))
    expect_same(through, await outcome(direct.session.call_tool(call["name"], call["arguments"])), "outcome")


async def counts_once(there: Connection) -> None:
    task = await there.create(tools["count"])
    result = await there.result(task.taskId)
    expect(result.content[0].text == "1", f"counted {result.content[0].text}")


async def unknown_task(there: Connection) -> None:
    tasks = there.session.experimental
    for request in (tasks.get_task(NOBODY), tasks.cancel_task(NOBODY), there.result(NOBODY)):
        await refused(request, INVALID_PARAMS)


async def outlives_session(there: Connection, direct: Connection) -> None:
    call = tools["steps"]
    async with connect(options.url, options.key) as first:
        task = await first.create(call)
    straight = await direct.session.call_tool(call["name"], call["arguments"])
    expect_same(without_related_task(await there.result(task.taskId)), without_related_task(straight), "result")


async def many_waiters(there: Connection, direct: Connection) -> None:
    call = tools["steps"]
    task = await there.create(call)
    results = await asyncio.gather(*(there.result(task.taskId) for _ in range(20)))
    straight = without_related_task(await direct.session.call_tool(call["name"], call["arguments"]))
    for result in results:
        expect_same(without_related_task(result), straight, "result")


async def listed(connection: Connection) -> list[types.Task]:
    found: list[types.Task] = []
    cursor = None
    while True:
        page = await connection.session.experimental.list_tasks(cursor)
        found.extend(page.tasks)
        cursor = page.nextCursor
        if cursor is None:
            return found


async def list_not_offered(there: Connection) -> None:
    expect(there.capabilities.tasks.list is None, "offered")
    await refused(there.session.experimental.list_tasks(), METHOD_NOT_FOUND)


async def lists_tasks(there: Connection) -> None:
    expect(there.capabilities.tasks.list is not None, "not offered")
    task = await there.create(tools["same"][0])
    await there.result(task.taskId)
    ids = [other.taskId for other in await listed(there)]
    expect(ids.count(task.taskId) == 1, f"listed {ids.count(task.taskId)} times")
    expect(len(set(ids)) == len(ids), "a task is listed twice")


async def stranger(there: Connection) -> None:
    task = await there.create(tools["same"][0])
    await there.result(task.taskId)
    async with connect(options.url, options.other_key) as other:
        expect(task.taskId not in [t.taskId for t in await listed(other)], "listed for another tenant")
        tasks = other.session.experimental
        for ask in (tasks.get_task, tasks.cancel_task, other.result):
            foreign, missing = await refused(ask(task.taskId), INVALID_PARAMS), await refused(ask(NOBODY), INVALID_PARAMS)
            expect(foreign.replace(task.taskId, NOBODY) == missing, f"told apart: {foreign}")


async def lists_by_policy(there: Connection, direct: Connection) -> None:
    listed = (await there.session.list_tools()).tools
    names = [tool.name for tool in (await direct.session.list_tools()).tools]
    expect_same({t.name: t.execution and t.execution.taskSupport for t in listed}, expected_support(names), "taskSupport")


async def required_as_task(there: Connection, direct: Connection) -> None:
    call = policy["required"]
    task = await there.create(call)
    straight = await direct.session.call_tool(call["name"], call["arguments"])
    expect_same(without_related_task(await there.result(task.taskId)), without_related_task(straight), "result")


async def forbidden_plainly(there: Connection, direct: Connection) -> None:
    call = policy["forbidden"]
    straight = await direct.session.call_tool(call["name"], call["arguments"])
    expect_same((await there.session.call_tool(call["name"], call["arguments"])).model_dump(), straight.model_dump(), "result")


async def denied(there: Connection) -> None:
    call = policy["denied"]
    await refused(there.session.call_tool(call["name"], call["arguments"]), INVALID_PARAMS)
    await refused(there.create(call), INVALID_PARAMS)


async def check_policy(there: Connection, direct: Connection) -> None:
    """What the route's rules for its tools mean to a client."""
    plain, task = policy["refused"]["required"], policy["refused"]["forbidden"]
    await check("list: tools are shown as the route has them", lambda: lists_by_policy(there, direct))
    await check("required: runs as a task", lambda: required_as_task(there, direct))
    await check("required: refused without a task", lambda: refused(
        there.session.call_tool(plain["name"], plain["arguments"]), METHOD_NOT_FOUND))
    await check("forbidden: runs plainly", lambda: forbidden_plainly(there, direct))
    await check("forbidden: refused as a task", lambda: refused(there.create(task), METHOD_NOT_FOUND))
    await check("denied: unknown, with a task and without", lambda: denied(there))


async def check_tasks(there: Connection, direct: Connection) -> None:
    await check("list: every tool may run as a task", lambda: lists_tools(there, direct))
    for call in tools["same"]:
        name = f"task result equals the direct one: {call['name']}"
        await check(name, lambda call=call: same_both_ways(there, direct, call))
    await check("progress reaches the caller of a task", lambda: progresses(there))
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
    await check("twenty waiters get the same result", lambda: many_waiters(there, direct))
    if not options.native:
        await check("an unknown tool gives what the server gives", lambda: unknown_tool(there, direct))
        if options.key is None:
            await check("tasks/list is not offered to unknown callers", lambda: list_not_offered(there))
    if options.key is not None:
        await check("tasks/list shows the caller every task of its own", lambda: lists_tasks(there))
    if options.other_key is not None:
        await check("another tenant sees nothing", lambda: stranger(there))


async def main() -> None:
    async with connect(options.url, options.key) as there, connect(options.direct) as direct:
        await (check_policy if options.policy else check_tasks)(there, direct)


asyncio.run(main())
