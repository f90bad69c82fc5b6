"""Whether the package on the other side of an integration is installed, in a version that Hone knows."""

from __future__ import annotations

from importlib import metadata

from packaging.specifiers import SpecifierSet

from hone.utils.errors import HoneError


class PeerMissing(HoneError, ModuleNotFoundError):
    """A package is not installed, or in a version that Hone was not tested with."""

    exit_code = 2

    def __init__(self, message: str, *, name: str) -> None:
        super().__init__(message)
        self.name = name


def require(distribution: str, versions: str, install: str) -> None:
    """Raise PeerMissing unless `distribution` is installed in one of `versions`.

    Args:
        versions: such as ">=1.4,<2".
        install: the command that installs it.
    """
    try:
        found = metadata.version(distribution)
    except metadata.PackageNotFoundError:
        message = f"{distribution} is not installed; {versions} is needed: {install}"
        raise PeerMissing(message, name=distribution) from None
    if not SpecifierSet(versions).contains(found, prereleases=True):
        message = f"{distribution} {found} is installed, but {versions} is needed: {install}"
        raise PeerMissing(message, name=distribution)
