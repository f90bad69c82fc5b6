"""The plan of one sandbox: made by the provider, sent to the spawn server, built in the forked child."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from hone.sandbox.contract import Limits

PACKET_MAX = 1 << 17  # bytes of a message between the provider and the spawn server


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlay:
    """A writable directory of the sandbox over read-only directories of the host."""

    target: str  # path inside; the overlay of "/" comes first
    name: str  # of its upper directory
    lowers: list[str]  # host paths, topmost first
    translated: bool  # whether the owner of their files appears as the sandbox's user
    own: list[str] = field(default_factory=list[str])  # directories remade in the upper, writable
    links: dict[str, str] = field(default_factory=dict[str, str])  # made in the upper: path -> target


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """The part of a plan that an image gives to each of its sandboxes."""

    name: str  # identifies the content; snapshots are bound to it
    uid: int  # of commands, as seen inside
    gid: int
    env: Mapping[str, str]  # PATH and HOME at least
    workdir: str  # default of specs that name none
    directories: list[str]  # made over the lowers of the root, parents first; relative
    links: dict[str, str]  # path -> target
    files: dict[str, str]  # path -> content
    overlays: list[Overlay]
    shown: list[tuple[str, str]]  # (host path, path inside): read-only, owners unchanged


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    id: str
    owner: str
    bwrap: str
    base: Base
    workdir: str
    copied: str | None = None  # host directory to copy into workdir, where it cannot be an overlay
    snapshot: str | None = None  # host directory with the initial upper layers
    made_ns: int  # modification time of the base's directories, files and links
    mounts: list[tuple[str, str]]  # (host path, path inside): read-only, owner appears as the sandbox's user
    sockets: list[tuple[str, str]]  # unix sockets of the host that can be connected to
    limits: Limits
    cores: int  # to pin its processes to, where no cgroup limits CPU time; else 0
    init: list[str]  # command line of process 1

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Plan:
        overlays = [Overlay(**overlay) for overlay in fields["base"]["overlays"]]
        base = Base(**{**fields["base"], "overlays": overlays})
        return cls(**{**fields, "base": base, "limits": Limits(**fields["limits"])})
