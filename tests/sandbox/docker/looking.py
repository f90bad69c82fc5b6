"""The containers and volumes of an engine, read without the provider."""

from __future__ import annotations

from typing import Any

from tests.services.engines import Engine


def containers(engine: Engine) -> dict[str, dict[str, Any]]:
    """Return {name: description} of all containers, in any state; one under removal may have its id only."""
    with engine.client() as client:
        found = client.get("/containers/json?all=1").json()
        return {
            (one["Names"] or [one["Id"]])[0]: client.get(f"/containers/{one['Id']}/json").json()
            for one in found
        }


def volumes(engine: Engine) -> list[str]:
    with engine.client() as client:
        return [volume["Name"] for volume in client.get("/volumes").json()["Volumes"] or ()]
