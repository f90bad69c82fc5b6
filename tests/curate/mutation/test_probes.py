import sys
import types
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hone.curate.mutation import probe
from hone.curate.mutation.candidates import Module
from hone.curate.mutation.probes import instrument, reached
from tests.curate.mutation.offered import dedent

CODE = dedent('''
    """A module."""
    from __future__ import annotations


    def sign(n):
        """A docstring."""
        if n < 0: return -1

        # between
        elif n > 0:
            @staticmethod
            def one():
                return 1
            return one.__func__()
        else:
            "only a text"
        return 0


    class C:
        def m(self):
            for _ in range(2):
                yield self
''')


def fresh_probe():
    """Return a probe that has recorded nothing."""
    fresh = types.ModuleType("hone_probe")
    code = compile(Path(probe.__file__).read_text(), "hone_probe.py", "exec", dont_inherit=True)
    exec(code, fresh.__dict__)
    return fresh


def run(code, monkeypatch):
    """Return the names of a module, and the probe that it calls."""
    fresh = fresh_probe()
    monkeypatch.setitem(sys.modules, "hone_probe", fresh)
    names = {"__name__": "module"}
    exec(compile(code, "module.py", "exec", dont_inherit=True), names)
    return names, fresh


def test_probes_report_reached_blocks_and_change_nothing_else(monkeypatch):
    module = Module("module.py", CODE)
    code = instrument(module.source, module.blocks, first=5)
    names, fresh = run(code, monkeypatch)
    monkeypatch.setenv("PYTEST_CURRENT_TEST", "tests/test_one.py::test_minus (call)")
    assert names["sign"](-3) == -1
    monkeypatch.setenv("PYTEST_CURRENT_TEST", "tests/test_two.py::test_plus (call)")
    assert (names["sign"](3), names["sign"].__doc__) == (1, "A docstring.")
    found = reached(f"noise\n{fresh.report()}\nmore noise\n")
    texts = [module.source.code(block) for block in module.blocks]
    hit = {file: {texts[i] for i in range(len(texts)) if bits >> 5 + i & 1} for file, bits in found.items()}
    assert {file: {text[:9] for text in each} for file, each in hit.items()} == {
        "tests/test_one.py": {'"""A docs', "return -1"},
        "tests/test_two.py": {'"""A docs', "def one()", "return 1"},
    }


def test_log_without_a_complete_report_has_no_blocks():
    assert reached("no report\n") is None
    assert reached(f"{probe.REPORT}eNqr\n") is None


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(["", "a.py", "b/c.py"]), st.sets(st.integers(0, 3000), min_size=1)))
def test_report_survives_the_round_trip(blocks):
    fresh = fresh_probe()
    with pytest.MonkeyPatch.context() as patch:
        for file, each in blocks.items():
            patch.setenv("PYTEST_CURRENT_TEST", f"{file}::test_it (call)")
            for block in each:
                fresh.hit(block)
    found = reached(fresh.report())
    assert found == {file: sum(1 << block for block in each) for file, each in blocks.items()}
