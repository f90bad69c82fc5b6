"""Harbor on Hone's sandboxes and grading.

    harbor run -p TASK -a oracle -e hone.integrations.harbor:HoneEnvironment \\
        --verifier hone.integrations.harbor:HoneVerifier
"""

import importlib.metadata

from hone.utils.errors import HoneError

TESTED = "0.25"
_INSTALL = f"pip install 'harbor=={TESTED}.*' (Python 3.12 or later)"


def _check() -> None:
    """Raise ModuleNotFoundError where harbor is missing, HoneError where it is of another version."""
    try:
        found = importlib.metadata.version("harbor")
    except importlib.metadata.PackageNotFoundError:
        raise ModuleNotFoundError(
            f"hone.integrations.harbor needs harbor {TESTED}: {_INSTALL}", name="harbor"
        ) from None
    if not found.startswith(f"{TESTED}."):
        raise HoneError(f"hone.integrations.harbor is tested with harbor {TESTED}, not {found}: {_INSTALL}")


_check()

from hone.integrations.harbor.environment import HoneEnvironment  # noqa: E402 - after the check
from hone.integrations.harbor.verifier import HoneVerifier  # noqa: E402

__all__ = ["HoneEnvironment", "HoneVerifier"]
