import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hone.curate.mutation.candidates import Module, combine
from hone.tasks.diffs import file_diff
from hone.tasks.errors import TaskError
from tests.curate.mutation.offered import all_offered

TEXT = "def f(a, b):\n    if a < b:\n        return a + 1\n    return b\n"
OTHER = "from one import f\n\n\ndef g(a):\n    return f(a, 3) * 2\n"


def git_apply(folder, before, patch):
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in before.items():
        (folder / path).write_bytes(text.encode())
    done = subprocess.run(
        ["git", "apply", "--whitespace=nowarn", "-"],
        cwd=folder,
        input=patch.encode(),
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return {path: (folder / path).read_bytes().decode() for path in before}


lines = st.lists(st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=8), max_size=12)


@settings(max_examples=25, deadline=None)
@given(lines, lines, st.sampled_from(["\n", "\r\n"]), st.booleans(), st.booleans())
def test_git_applies_the_diff(tmp_path_factory, one, other, newline, ends, other_ends):
    before = newline.join(one) + newline * ends
    after = newline.join(other) + newline * other_ends
    if not before or not after or before == after:
        return
    patch = file_diff("a.py", before, after)
    assert git_apply(tmp_path_factory.mktemp("tree"), {"a.py": before}, patch) == {"a.py": after}


def test_gold_patch_reverts_the_bug(tmp_path):
    modules = {"one.py": Module("one.py", TEXT), "two.py": Module("two.py", OTHER)}
    singles = [m for module in modules.values() for m in module.mutations()]
    for number, mutation in enumerate(singles):
        candidate = combine(modules, [mutation])
        if candidate is not None:
            fixed = git_apply(tmp_path / str(number), candidate.after, candidate.gold_patch)
            assert fixed == dict(candidate.before)


def test_mutations_of_two_places_or_files_combine(tmp_path):
    modules = {"one.py": Module("one.py", TEXT), "two.py": Module("two.py", OTHER)}
    (less,) = [m for m in modules["one.py"].mutations() if m.operator == "comparison_boundary"]
    (plus,) = [m for m in modules["one.py"].mutations() if m.operator == "arithmetic"]
    (times,) = [m for m in modules["two.py"].mutations() if m.operator == "arithmetic"]
    compound = combine(modules, [less, plus])
    assert (compound.kind, compound.operators) == ("compound", ("comparison_boundary", "arithmetic"))
    assert compound.after == {"one.py": TEXT.replace("a < b", "a <= b").replace("a + 1", "a - 1")}
    across = combine(modules, [less, times])
    assert across.kind == "cross-file"
    assert git_apply(tmp_path, across.after, across.gold_patch) == {"one.py": TEXT, "two.py": OTHER}


def test_overlapping_mutations_make_no_candidate():
    modules = {"one.py": Module("one.py", TEXT)}
    boundary, inverse = (
        next(m for m in modules["one.py"].mutations() if m.operator == name)
        for name in ("comparison_boundary", "comparison_inverse")
    )
    assert combine(modules, [boundary, inverse]) is None
    assert all(compile(after, "x", "exec") for _, after in all_offered(TEXT))


@pytest.mark.parametrize("text", ["\ufeffx = 1\n", "x = 1\ry = 2\n", "x = (\n"])
def test_unsafe_files_are_refused(text):
    with pytest.raises(TaskError, match=r"one\.py: "):
        Module("one.py", text)
