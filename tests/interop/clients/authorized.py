"""The OAuth clients of the Python SDKs, from the refusal to a result: 1.x as a task client of 2025-11-25, 2.x in 2026-07-28,
without tasks. The browser is a program that BROWSER names."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

from checks import bare, check, expect, expect_same, names_of, options, tools
from mcp.client.auth import OAuthClientProvider
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from pydantic import AnyUrl

REDIRECT = "http://127.0.0.1:9/callback"  # nobody listens there: the browser stops before it
LEGACY = options.era == "legacy"


class Person:
    """What the SDK wants kept, and a browser."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.tokens: OAuthToken | None = None
        self.client: OAuthClientInformationFull | None = None
        self.came_back: dict[str, list[str]] = {}

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.log.append("tokens")
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.log.append("registered")
        self.client = client_info

    async def visit(self, url: str) -> None:
        self.log.append("browser")
        browser = await asyncio.create_subprocess_exec(
            os.environ["BROWSER"], url, REDIRECT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE)
        output, errors = await browser.communicate()
        expect(browser.returncode == 0, f"the browser: {errors.decode()}")
        self.came_back = parse_qs(urlsplit(output.decode().strip()).query)

    async def callback(self) -> Any:
        code, state, issuer = (self.came_back[name][0] for name in ("code", "state", "iss"))
        if LEGACY:
            return code, state
        from mcp.client.auth import AuthorizationCodeResult

        return AuthorizationCodeResult(code=code, state=state, iss=issuer)

    def provider(self) -> OAuthClientProvider:
        metadata = OAuthClientMetadata(
            client_name="interop", redirect_uris=[AnyUrl(REDIRECT)], token_endpoint_auth_method="none",
            grant_types=["authorization_code", "refresh_token"], response_types=["code"])
        return OAuthClientProvider(options.url, metadata, self, self.visit, self.callback)


@contextlib.asynccontextmanager
async def connect(url: str, auth: OAuthClientProvider | None = None) -> AsyncIterator[Any]:
    """What has `list_tools` and `call_tool`, in either SDK."""
    if LEGACY:
        from mcp import ClientSession
        from mcp.client.streamable_http import streamablehttp_client

        async with streamablehttp_client(url, auth=auth) as (read, write, _), ClientSession(read, write) as session:
            await session.initialize()
            yield session
    else:
        import httpx2
        from mcp import Client
        from mcp.client.streamable_http import streamable_http_client

        async with Client(streamable_http_client(url, http_client=httpx2.AsyncClient(auth=auth, timeout=60)), cache=None) as client:
            yield client


async def slowly(there: Any) -> Any:
    """The result of a slow call: of its task, where the client can have one."""
    name, arguments = tools["steps"]["name"], tools["steps"]["arguments"]
    if not LEGACY:
        return await there.call_tool(name, arguments)
    from mcp import types

    created = await there.experimental.call_tool_as_task(name, arguments)
    async for _status in there.experimental.poll_task(created.task.taskId):
        pass
    return await there.experimental.get_task_result(created.task.taskId, types.CallToolResult)


async def main() -> None:
    person = Person()

    async def walks() -> None:
        async with connect(options.url, person.provider()) as there, connect(options.direct) as direct:
            expect_same(person.log, ["registered", "browser", "tokens"], "what happened")
            expect("echo" in names_of((await there.list_tools()).tools), "not listed")
            expect_same(bare(await slowly(there)), bare(await direct.call_tool(tools["steps"]["name"], tools["steps"]["arguments"])), "result")

    async def comes_again() -> None:
        person.log.clear()
        async with connect(options.url, person.provider()) as there:
            expect("echo" in names_of((await there.list_tools()).tools), "not listed")
        expect_same(person.log, [], "what happened")

    async def steps_up() -> None:
        person.log.clear()
        async with connect(options.url, person.provider()) as there:
            result = await there.call_tool(tools["count"]["name"], tools["count"]["arguments"])
        expect_same(result.content[0].text, "1", "counted")
        expect_same(person.log, ["browser", "tokens"], "what happened")
        granted = set((person.tokens.scope or "").split()) if person.tokens else set()
        expect({"mcp:read", "mcp:write"} <= granted, f"scope afterwards: {granted}")

    await check("from the refusal to the result of a slow call, with the browser once", walks)
    await check("the tokens that were kept are good", comes_again)
    if options.rules:
        await check("a call that needs more scopes: the browser again, and then it runs, once", steps_up)


asyncio.run(main())
