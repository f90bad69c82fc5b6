import sys
import types

from hone.curate.mutation.baseline import REPORTER, REPORTING, instrument, reached
from hone.curate.mutation.candidates import Module
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


def run(code, name="module"):
    names = {"__name__": name}
    exec(compile(code, f"{name}.py", "exec", dont_inherit=True), names)
    return names


def test_probes_report_reached_blocks_and_change_nothing_else(monkeypatch, capsys):
    probe = types.SimpleNamespace(**run(REPORTING["hone_probe.py"], "hone_probe"))
    monkeypatch.setitem(sys.modules, "hone_probe", probe)
    module = Module("module.py", CODE)
    names = run(instrument(module.source, module.blocks, first=5))
    assert (names["sign"](3), names["sign"].__doc__) == (1, "A docstring.")
    run(REPORTING[REPORTER])["test_report"]()
    bits = reached(f"noise\n{capsys.readouterr().out}more noise\n")
    texts = [module.source.code(block) for block in module.blocks]
    hit = {text for number, text in enumerate(texts, 5) if bits >> number & 1}
    assert {text[:9] for text in hit} == {'"""A docs', "def one()", "return 1"}


def test_log_without_a_complete_report_has_no_blocks():
    assert reached("no report\n") is None
    assert reached("hone-reached 1f") is None
    assert reached("hone-reached 1f.\n1 passed") == 31
