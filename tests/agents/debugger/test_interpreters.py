"""The debugger's server on old interpreters."""

from __future__ import annotations

import pytest

from tests.agents.debugger.session import ToolSession, run_session
from tests.interpreters import shared_environment

pytestmark = [pytest.mark.sandbox, pytest.mark.full]

ENVIRONMENTS = [
    ("3.6", "pytest==7.0.1"),
    ("3.7", "pytest==5.3.5"),
    ("3.8", "pytest==8.3.5"),
    ("3.9", "pytest==8.4.2"),
    ("3.13", "pytest==8.4.2"),
]


@pytest.mark.parametrize("python", ENVIRONMENTS, ids="-".join)
def test_session_on_an_old_interpreter(python: tuple[str, ...]) -> None:
    async def scenario(tools: ToolSession) -> None:
        await tools.script("import sys\nprint('end')\n")
        await tools.pdb("n")
        assert str(tuple(map(int, python[0].split(".")))) in await tools.pdb("p sys.version_info[:2]")
        assert "app.py(1)<module>()" in await tools.pdb("start", "python", "app.py")
        await tools.pdb("b 7")
        assert "app.py(7)scale()" in await tools.pdb("c")
        assert "Pdb command output:\n0\n" in await tools.pdb("p total")
        started = await tools.pdb("start", "pytest", "tests/test_app.py::test_scale")
        assert "tests/test_app.py" in started
        assert "total += value * factor" in await tools.use("grep", pattern="total \\+=")
        assert "1 failed, 1 passed" in await tools.use("eval")

    run_session(scenario, venv=shared_environment(*python))
