"""How the gateway is started: by its command line where that is enough, by a configuration file where callers have keys."""

import hashlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stage.places import PROJECT, TESTS
from stage.programs import Programs, answers, free_port
from stage.replicas import one_of_many, start_balancer, start_redis

KEYS = {"acme": "interop-key-of-acme", "globex": "interop-key-of-globex"}


def find_gateway(given: str | None) -> Path | None:
    """The binary to test: the one asked for, else the newest that cargo built."""
    if given:
        return Path(given).resolve()
    target = Path(os.environ.get("CARGO_TARGET_DIR", PROJECT / "target"))
    built = [target / profile / "taskgate" for profile in ("release", "debug")]
    return max((path for path in built if path.exists()), key=lambda path: path.stat().st_mtime, default=None)


@dataclass
class Gateway:
    """A running gateway, or several of them behind one origin."""

    origin: str
    admin: str
    names: list[str] = field(default_factory=lambda: ["gateway"])  # of the programs

    @property
    def url(self) -> str:
        return f"{self.origin}/mcp"


def start_gateway(
    programs: Programs, binary: Path, *, upstream: str | None = None, command: list[str | Path] = (), keys: bool = False,
    route: dict[str, Any] | None = None, name: str = "gateway", more: dict[str, Any] | None = None,
) -> Gateway:
    """Starts the gateway in front of a server's URL or of a command that speaks stdio; `route` is what its route has besides,
    `more` what its configuration has."""
    listen, admin = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    arguments: list[str | Path]
    if keys or route or more:
        path = programs.log(name).with_suffix(".yaml")
        behind = {"url": upstream} if upstream else {"command": [str(part) for part in command]}
        configuration = _configuration(listen, admin, behind, route or {}) | (_with_keys() if keys else {}) | (more or {})
        path.write_text(json.dumps(configuration, indent=2))  # JSON is YAML
        arguments = ["--config", path]
    elif upstream:
        arguments = ["--upstream", upstream, "--listen", listen, "--admin", admin]
    else:
        arguments = ["--listen", listen, "--admin", admin, "--", *command]
    programs.start(name, [binary, "serve", *arguments], lambda: answers(f"http://{admin}/readyz"))
    return Gateway(f"http://{listen}", f"http://{admin}", [name])


def start_replicas(programs: Programs, binary: Path, count: int, **options: Any) -> Gateway:
    """Starts so many gateways over one Redis, and what deals requests out among them in turn."""
    redis = start_redis(programs)
    gateways = [
        start_gateway(programs, binary, name=f"gateway-{number}", more=one_of_many(number, redis), **options)
        for number in range(count)
    ]
    origin = start_balancer(programs, [gateway.origin for gateway in gateways])
    return Gateway(origin, gateways[0].admin, [name for gateway in gateways for name in gateway.names])


def _configuration(listen: str, admin: str, upstream: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    route = {"name": "interop", "path": "/mcp", "upstream": upstream, "tasks": {"poll_interval": "200ms"}}
    for section, keys in more.items():
        route[section] = route.get(section, {}) | keys
    # Calls that nobody waits for are left over here and there: the gateway has to be gone before it is killed.
    return {
        "listen": {"address": listen}, "admin": {"address": admin}, "shutdown": {"drain": "5s"}, "routes": [route],
    }


def _with_keys() -> dict[str, Any]:
    callers = [
        {"sha256": hashlib.sha256(key.encode()).hexdigest(), "tenant": tenant, "subject": f"{tenant}-agent"}
        for tenant, key in KEYS.items()
    ]
    return {"auth": {"api_keys": callers}, "tenants": {tenant: {"running_tasks": 200} for tenant in KEYS}}


def rules_for_clients() -> dict[str, Any]:
    """The rules for tools that the clients expect, from servers/tools.json."""
    policy = json.loads((TESTS / "servers" / "tools.json").read_text(encoding="utf-8"))["policy"]
    tools = [{"match": tool, "support": support} for tool, support in policy["support"].items()]
    return {"tools": {"deny": [policy["denied"]["name"]]}, "tasks": {"tools": tools}}


def rules_for_suite() -> dict[str, Any]:
    """How the tools of the fixture become tasks, from fixture/policy.json."""
    return json.loads((TESTS / "fixture" / "policy.json").read_text(encoding="utf-8"))
