"""Harbor on Hone's sandboxes and grading.

    harbor run -p TASK -a oracle -e hone.integrations.harbor:HoneEnvironment \\
        --verifier hone.integrations.harbor:HoneVerifier
"""

from hone.integrations.peer import require

require("harbor", "==0.25.*", "pip install 'harbor==0.25.*' (Python 3.12 or later)")

from hone.integrations.harbor.environment import HoneEnvironment  # noqa: E402 - after the check
from hone.integrations.harbor.verifier import HoneVerifier  # noqa: E402

__all__ = ["HoneEnvironment", "HoneVerifier"]
