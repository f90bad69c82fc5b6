"""Names of images in registries: `[docker://][REGISTRY/]REPOSITORY[:TAG][@DIGEST]`, as Docker reads them.

Grammar: github.com/distribution/reference. Without a registry it is docker.io, and there `python` is
`library/python`; without a tag it is `latest`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from hone.sandbox.contract import ImageUnavailable

DEFAULT_REGISTRY = "docker.io"
BUILT = "localhost/hone/"  # of the names of images that Hone builds, which no registry has
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_REGISTRY = re.compile(rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[0-9a-fA-F:]+\])(?::[0-9]{{1,5}})?")
_COMPONENT = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REPOSITORY = re.compile(rf"{_COMPONENT}(?:/{_COMPONENT})*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_MAX_NAME = 255
_LOOPBACK = re.compile(r"(?:localhost|127(?:\.\d{1,3}){3}|\[::1\])(?::\d+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """Example: `python@sha256:...` has registry docker.io, repository library/python and no tag."""

    registry: str
    repository: str
    tag: str  # "" when there is a digest
    digest: str  # "" or `sha256:...`

    @property
    def name(self) -> str:
        """The full name; equal for all spellings of one reference."""
        suffix = f"@{self.digest}" if self.digest else f":{self.tag}"
        return f"{self.registry}/{self.repository}{suffix}"

    @property
    def is_built(self) -> bool:
        """Whether Hone builds the image, so that no registry has it."""
        return self.name.startswith(BUILT)

    @property
    def is_loopback(self) -> bool:
        """Whether the registry is on this machine."""
        return _LOOPBACK.fullmatch(self.registry) is not None


def parse(text: str) -> Reference:
    """Parse the name of an image. Raises ImageUnavailable when it is invalid."""
    rest, at, digest = text.removeprefix("docker://").partition("@")
    if at and not _DIGEST.fullmatch(digest):
        raise _refusal(text, "its digest is not sha256: and 64 hexadecimal digits")
    path, tag = rest, ""
    if ":" in rest.rpartition("/")[2]:
        path, _, tag = rest.rpartition(":")
        if not _TAG.fullmatch(tag):
            raise _refusal(text, f"{tag!r} is not a tag")
    first, slash, below = path.partition("/")
    if slash and (set(".:") & set(first) or first == "localhost" or first != first.lower()):
        registry, repository = first, below
    else:
        registry, repository = DEFAULT_REGISTRY, path
    if registry == "index.docker.io":
        registry = DEFAULT_REGISTRY
    if registry == DEFAULT_REGISTRY and "/" not in repository:
        repository = f"library/{repository}"
    if not _REGISTRY.fullmatch(registry):
        raise _refusal(text, f"{registry!r} is not the name of a registry")
    if not _REPOSITORY.fullmatch(repository) or len(registry) + len(repository) > _MAX_NAME:
        raise _refusal(text, "a repository has lower case letters, digits, and separators between them")
    return Reference(
        registry=registry, repository=repository, tag="" if digest else tag or "latest", digest=digest
    )


def canonical(image: str) -> str:
    """Return the canonical spelling of an image in a spec: `docker://x` and `x:latest` are the same image.

    Raises ImageUnavailable when the name is invalid.
    """
    return image if image == "host" or image.startswith("rootfs:") else parse(image).name


def _refusal(text: str, why: str) -> ImageUnavailable:
    return ImageUnavailable(f"{text!r} is not the name of an image: {why}", problem="unknown_image")
