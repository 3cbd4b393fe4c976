"""Several gateways that share a Redis, behind a load balancer that switches with every request."""

import shutil
from typing import Any

from stage.places import NODE, TESTS
from stage.programs import Programs, free_port, listens

REDIS = "redis-server"
# Every replica opens what another has sealed.
_KEY = "aW50ZXJvcC1yZXBsaWNhcy1zaGFyZS10aGlzLWtleSE="


def can_share() -> bool:
    """Whether there is a server to keep the tasks."""
    return shutil.which(REDIS) is not None


def start_redis(programs: Programs) -> str:
    """Starts a Redis that loses nothing that it has acknowledged; gives its URL."""
    port, folder = free_port(), programs.log(REDIS).with_suffix("")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    command = [REDIS, "--bind", "127.0.0.1", "--port", str(port), "--dir", folder, "--save", "",
               "--appendonly", "yes", "--appendfsync", "always", "--maxmemory-policy", "noeviction"]
    programs.start(REDIS, command, lambda: listens(port))
    return f"redis://127.0.0.1:{port}/0"


def one_of_many(number: int, redis: str) -> dict[str, Any]:
    """What the configuration of a replica has besides."""
    return {
        "secrets": {"key": _KEY},
        "store": {"kind": "redis", "url": redis},
        "replica": {"id": f"replica-{number}", "lease": "2s", "address": f"127.0.0.1:{free_port()}"},
    }


def start_balancer(programs: Programs, origins: list[str]) -> str:
    """Starts the load balancer; gives its origin."""
    port = free_port()
    command = [NODE, TESTS / "wire" / "round_robin.mjs", "--port", str(port)]
    for origin in origins:
        command += ["--target", origin]
    programs.start("balancer", command, lambda: listens(port))
    return f"http://127.0.0.1:{port}"
