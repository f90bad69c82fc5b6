"""Harbor on Hone's sandboxes and grading.

    harbor run -p TASK -a oracle -e hone.integrations.harbor:HoneEnvironment \\
        --verifier hone.integrations.harbor:HoneVerifier
"""

import importlib.metadata

from hone.utils.errors import HoneError

TESTED = "0.25"


def _check() -> None:
    """Raise HoneError where the harbor package is missing or of another version."""
    try:
        found = importlib.metadata.version("harbor")
    except importlib.metadata.PackageNotFoundError:
        found = "missing"
    if not found.startswith(f"{TESTED}."):
        raise HoneError(
            f"hone.integrations.harbor is tested with harbor {TESTED}, and here it is {found}: "
            f"pip install 'harbor=={TESTED}.*' (Python 3.12 or later)"
        )


_check()

from hone.integrations.harbor.environment import HoneEnvironment  # noqa: E402 - after the check of the version
from hone.integrations.harbor.verifier import HoneVerifier  # noqa: E402

__all__ = ["HoneEnvironment", "HoneVerifier"]
