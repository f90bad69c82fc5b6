"""Probe what a Docker engine can isolate and limit."""

from __future__ import annotations

from hone.sandbox.contract import Check, Health, Provider, ProviderUnavailable
from hone.sandbox.docker.configuration import enforced
from hone.sandbox.docker.engine import open_engine
from hone.sandbox.health import limit_checks, probe_sandbox


async def health(provider: Provider, url: str, image: str) -> Health:
    """Return the checks of an engine. Opens `provider`, which must not be open."""
    try:
        async with open_engine(url) as engine:
            info = await engine.info()
    except ProviderUnavailable as error:
        fix = "start the engine, or name its socket in sandbox.docker_url"
        return Health(checks=(Check(name="engine", ok=False, detail=str(error), fix=fix),))
    detail = f"{info.name} at {url}, API {info.api}, storage {info.storage}"
    checks = [Check(name="engine", ok=True, detail=detail), *limit_checks(enforced(info))]
    return Health(checks=(*checks, *await probe_sandbox(provider, image=image)))
