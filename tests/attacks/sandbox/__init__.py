"""Attacks on sandboxes: real attempts, each of which succeeds where no sandbox stands in its way.

An attack is a small Python program. It runs twice: as a plain process of the host (its control), where it
must get through, and inside a sandbox, where it must not. So no test passes because its attack is broken.
What a control could break is broken in throw-away namespaces, or in bounded form. The controls need root.
"""

import pytest

pytest.register_assert_rewrite("tests.attacks.sandbox.attack_target")
