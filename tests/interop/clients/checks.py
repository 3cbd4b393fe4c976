"""What the Python clients share: their arguments, the tools of the server at hand, and the lines they print.

A client prints one JSON line for each check, {"check", "status", "detail"}, and exits 0 once all have run;
whether one failed is read from the lines.
"""

import argparse
import asyncio
import json
import urllib.request
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

LIMIT = 30.0
SOON = 0.02  # seconds
RELATED = "io.modelcontextprotocol/related-task"
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
NOBODY = "00000000-0000-4000-8000-000000000000"


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True, help="where the checks go")
    parser.add_argument("--direct", required=True, help="the same server, without a gateway before it")
    parser.add_argument("--tools", required=True, help="its entry in servers/tools.json")
    parser.add_argument("--label", required=True, help="sets this client's calls apart in the server's journal")
    parser.add_argument("--key", help="API key; with it tasks/list is expected to work")
    parser.add_argument("--other-key", help="a key of another tenant")
    parser.add_argument("--native", action="store_true", help="the server does tasks itself, not taskgate")
    parser.add_argument("--record", type=Path, help="what was sent to the server, where that keeps no journal")
    parser.add_argument("--without", choices=["ask", "questions", "last-progress"],
                        help="what can't be had here: ask, questions of any kind, or surely the last progress")
    parser.add_argument("--era", choices=["legacy", "modern"], default="modern", help="which one a client of both speaks")
    parser.add_argument("--extension", action="store_true", help="whether it declares the tasks extension")
    parser.add_argument("--policy", action="store_true", help="the route has rules for its tools: check those, and nothing else")
    parser.add_argument("--rules", action="store_true", help="the route has rules for people, too")
    return parser.parse_args()


options = parse_options()
_catalogue = (Path(__file__).parent.parent / "servers" / "tools.json").read_text(encoding="utf-8")
_all = json.loads(_catalogue.replace("LABEL", options.label))
tools: dict[str, Any] = _all.get(_all[options.tools].get("like"), {}) | _all[options.tools]
for kind in {"ask": ["ask"], "questions": ["ask", "ask_twice", "sample"]}.get(options.without, []):
    tools.pop(kind, None)
policy: dict[str, Any] = _all["policy"]


def sure(progress: list[Any]) -> list[Any]:
    """Progress as far as it surely comes: the last may arrive after the result, and then belongs to nothing."""
    return progress[: tools["progress"] - 1] if options.without == "last-progress" else progress


def expected_support(names: list[str]) -> dict[str, str]:
    """The taskSupport that the route's rules give to a server's tools."""
    return {name: policy["support"].get(name, "optional") for name in names if name != policy["denied"]["name"]}


def names_of(listed: list[Any]) -> list[str]:
    """The names of tools."""
    return [tool.name for tool in listed]


async def check(name: str, body: Callable[[], Awaitable[None]]) -> None:
    """Runs one check under a time limit and prints how it went."""
    line = {"check": name, "status": "passed"}
    try:
        async with asyncio.timeout(LIMIT):
            await body()
    except Exception as failure:  # whatever went wrong is the check's result
        while isinstance(failure, ExceptionGroup):
            failure = failure.exceptions[0]
        line = {"check": name, "status": "failed", "detail": f"{type(failure).__name__}: {failure}"}
    print(json.dumps(line, ensure_ascii=False), flush=True)


def expect(condition: object, message: str) -> None:
    if not condition:
        raise AssertionError(message)


def expect_same(actual: object, expected: object, what: str) -> None:
    """Compares JSON values; says where a difference begins."""
    if actual == expected:
        return
    left, right = (json.dumps(value, ensure_ascii=False, sort_keys=True) for value in (actual, expected))
    differing = next((i for i, (a, b) in enumerate(zip(left, right)) if a != b), min(len(left), len(right)))
    start = max(0, differing - 40)
    raise AssertionError(f"{what}: got {left[start:start + 160]} instead of {right[start:start + 160]}")


def _has_begun() -> bool:
    """Whether this client's slow call has begun: by the server's journal, or by the record of what was sent to the server."""
    if options.record:
        call = json.dumps(tools["cancel"]["arguments"], separators=(",", ":"), ensure_ascii=False)
        return call in options.record.read_text(encoding="utf-8", errors="replace")
    with urllib.request.urlopen(f"{options.direct.removesuffix('/mcp')}/journal", timeout=5) as response:
        return {"event": "started", "label": options.label} in json.load(response)


async def begun() -> None:
    """Waits for that: a call that is cancelled before it is sent never happened, which shows nothing."""
    while not await asyncio.to_thread(_has_begun):
        await asyncio.sleep(SOON)


async def arrived(has_come: Callable[[], bool]) -> None:
    """Waits for what comes on the session's own stream, which nothing orders with the answers of other requests: the end of a
    task may be read before its last progress. What has not come after a while never will, and the check then says so."""
    for _ in range(500):
        if has_come():
            return
        await asyncio.sleep(SOON)


def as_json(model: Any) -> dict[str, Any]:
    """A message as it was on the wire, absent members left out."""
    return model.model_dump(mode="json", by_alias=True, exclude_unset=True)


def without_related_task(result: Any) -> dict[str, Any]:
    """A result without what a gateway has to add to it: the related task."""
    value = as_json(result)
    meta = value.pop("_meta", None) or {}
    meta.pop(RELATED, None)
    return {**value, "_meta": meta} if meta else value


def bare(result: Any) -> dict[str, Any]:
    """A result without what belongs to the era that it came in."""
    value = as_json(result)
    value.pop("resultType", None)
    meta = {key: item for key, item in (value.pop("_meta", None) or {}).items() if not key.startswith("io.modelcontextprotocol/")}
    return {**value, "_meta": meta} if meta else value


def related_task(message: Any) -> str | None:
    return ((as_json(message).get("_meta") or {}).get(RELATED) or {}).get("taskId")
