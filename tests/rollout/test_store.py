from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hone.outcomes import OUTCOME_RULES, Fault, Outcome
from hone.rollout.errors import StoreError
from hone.rollout.store import Store, load
from hone.types import (
    Call,
    FinalScore,
    Judgement,
    Node,
    ProgressScores,
    ProgressStatus,
    Sampler,
    Scores,
    Signal,
    TestStatus,
    TokenTree,
    Trajectory,
    Turn,
    TurnProgress,
    Verdict,
    Vote,
)
from tests.examples import examples

text = st.text(st.characters(codec=None), max_size=40)  # lone surrogates and control characters included
lines = st.lists(st.sampled_from(["+a", "-b", "\r", "", "\x00", "é", "\udcff"]), max_size=6).map("\n".join)
number = st.floats(allow_nan=False, allow_infinity=False)


@st.composite
def trees(draw: st.DrawFn) -> TokenTree:
    tree, top = TokenTree(), draw(st.sampled_from([7, 300]))
    for i in range(draw(st.integers(0, 6))):
        sampled = draw(st.booleans())
        tokens = draw(st.lists(st.integers(0, 2**31 - 1), max_size=5))
        size = len(tokens) if sampled else 0
        logprobs = draw(st.lists(st.floats(width=32), min_size=size, max_size=size))
        routing = None
        if tokens and draw(st.booleans()):  # 3 layers, 2 experts
            experts = st.lists(st.integers(-1, top), min_size=6 * len(tokens), max_size=6 * len(tokens))
            routing = np.array(draw(experts), np.int8 if top < 128 else np.int16).reshape(-1, 3, 2)
        tree.append(
            Node(
                parent=draw(st.none() | st.integers(0, i - 1)) if i else None,
                tokens=np.array(tokens, np.int32),
                sampled=sampled,
                logprobs=np.array(logprobs, np.float32),
                version=np.array(draw(st.lists(st.integers(0, 9), min_size=size, max_size=size)), np.int32),
                turn=draw(st.integers(0, 5)),
                routing=routing,
            )
        )
    return tree


turns = st.builds(
    Turn,
    index=st.integers(0, 99),
    node=st.none() | st.integers(0, 99),
    reply=text,
    action=st.none() | text,
    exit_code=st.none() | st.integers(-1, 255),
    observation=text,
    seconds=number,
)
verdicts = st.builds(
    Verdict,
    resolved=st.booleans(),
    tests=st.dictionaries(text, st.sampled_from(TestStatus), max_size=3),
    score=st.floats(0, 1),
    tampered=st.none() | text,
    log=text,
)

optional_text = st.none() | text
calls = st.builds(
    Call,
    index=st.integers(0, 9),
    node=st.none() | st.integers(0, 9),
    purpose=text,
    fork=optional_text,
    prompt_tokens=st.integers(0, 9),
    sampled_tokens=st.integers(0, 9),
    seconds=number,
)
votes = st.builds(Vote, score=number, latency_ms=number, raw_text=text, ok=st.booleans(), error=optional_text)
judgements = st.builds(Judgement, step_index=st.integers(0, 9), votes=st.lists(votes, max_size=2).map(tuple))
steps = st.builds(
    TurnProgress,
    step_index=st.integers(0, 9),
    status=st.sampled_from(ProgressStatus),
    changed=st.booleans(),
    score=st.none() | number,
    error=optional_text,
)
scores = st.builds(
    Scores,
    judgements=st.none() | st.lists(judgements, max_size=2).map(tuple),
    progress=st.none()
    | st.builds(
        ProgressScores, initial_score=st.none() | number, steps=st.lists(steps, max_size=2).map(tuple)
    ),
    final=st.none() | st.builds(FinalScore, **dict.fromkeys(FinalScore.__dataclass_fields__, number)),
)


@st.composite
def trajectories(draw: st.DrawFn) -> Trajectory:
    outcome = draw(st.sampled_from(Outcome))
    infrastructure = OUTCOME_RULES[outcome].fault is Fault.INFRASTRUCTURE
    return Trajectory(
        task_id=draw(text),
        rollout_id=draw(text),
        group_id=draw(text),
        tree=draw(trees()),
        turns=tuple(draw(st.lists(turns, max_size=3))),
        messages=tuple(draw(st.lists(st.fixed_dictionaries({"role": text, "content": text}), max_size=3))),
        patch=draw(lines),
        outcome=outcome,
        reward=None if infrastructure else draw(number),
        verdict=draw(st.none() | verdicts),
        error=draw(st.none() | text),
        timings=draw(st.dictionaries(st.sampled_from(["start", "agent", "grade"]), number)),
        scores=draw(scores),
        sampler=Sampler(agent=draw(text), engine=draw(st.none() | text), sampling={"top_p": draw(number)}),
        seed=draw(st.none() | st.integers(0, 2**63 - 1)),
        started_at=draw(st.none() | number),
        tools=tuple(draw(st.lists(st.fixed_dictionaries({"name": text}), max_size=2))),
        calls=tuple(draw(st.lists(calls, max_size=2))),
        forks=draw(st.dictionaries(text, st.integers(0, 9), max_size=2)),
        signals=tuple(draw(st.lists(st.builds(Signal, turn=st.integers(0, 9), kind=text, command=text)))),
        enforced_limits=draw(st.dictionaries(text, text, max_size=2)),
        notes=draw(st.dictionaries(text.map("note_{}".format), st.none() | number | text, max_size=3)),
    )


def assert_same(one: Trajectory, other: Trajectory) -> None:
    for name in Trajectory.__dataclass_fields__:
        if name != "tree":
            assert getattr(one, name) == getattr(other, name), name
    assert len(one.tree.nodes) == len(other.tree.nodes)
    for left, right in zip(one.tree.nodes, other.tree.nodes, strict=True):
        assert (left.parent, left.sampled, left.turn) == (right.parent, right.sampled, right.turn)
        for field in ("tokens", "logprobs", "version", "routing"):
            a, b = getattr(left, field), getattr(right, field)
            if a is None or b is None:
                assert a is b is None
                continue
            assert (a.dtype, a.shape) == (b.dtype, b.shape)
            assert a.tobytes() == b.tobytes(), field


def example(**changes: object) -> Trajectory:
    sampled = np.array([7, 8], np.int32)
    node = Node(
        parent=0,
        tokens=sampled,
        sampled=True,
        logprobs=np.array([-0.5, -1.5], np.float32),
        version=sampled * 0 + 3,
        turn=0,
    )
    empty = np.zeros(0, np.int32)
    prompt = Node(
        parent=None,
        tokens=np.arange(4, dtype=np.int32),
        sampled=False,
        logprobs=np.zeros(0, np.float32),
        version=empty,
        turn=0,
    )
    turn = Turn(
        index=0, node=1, reply="run it", action="ls", exit_code=0, observation="x" * 5000, seconds=1.5
    )
    unparsed = Turn(index=1, node=None, reply="?", action=None, exit_code=None, observation="no", seconds=0.5)
    fields = {
        "task_id": "org/repo-1",
        "rollout_id": "s0g1-2",
        "group_id": "s0g1",
        "tree": TokenTree([prompt, node]),
        "turns": (turn, unparsed),
        "messages": ({"role": "user", "content": "fix it"},),
        "patch": "--- a/x\r\n+++ b/x\n",
        "outcome": Outcome.RESOLVED,
        "reward": 1.0,
        "verdict": Verdict(resolved=True, tests={"tests/test_hidden.py::test": TestStatus.PASSED}, score=1.0),
        "started_at": 100.0,
    }
    return Trajectory(**{**fields, **changes})


@settings(max_examples=examples(80), deadline=None)
@given(trajectory=trajectories())
def test_stored_trajectory_is_loaded_bit_for_bit(trajectory: Trajectory):
    with tempfile.TemporaryDirectory() as root:
        store = Store(Path(root) / "rollouts")
        name = store.save(trajectory, group=1, index=2)
        assert_same(store.load(name), trajectory)


def test_rollout_files_have_the_documented_keys(tmp_path: Path):
    store = Store(tmp_path)
    name = store.save(example(), group=1, index=2)
    assert name.startswith("org_repo-1__g1__i2__")
    assert name.rsplit("__", 1)[1].isdigit()
    directory = tmp_path / name
    traj = json.loads((directory / "traj.json").read_text())
    (step,) = traj["step_debug"]  # the reply without an action is no step
    assert {**step, "output_head": "", "output_tail": ""} == {
        "step_idx": 0,
        "action": "ls",
        "returncode": 0,
        "output_len": 5000,
        "output_head": "",
        "output_tail": "",
        "start_ts": 100.0,
        "end_ts": 101.5,
        "ok": True,
    }
    assert (len(step["output_head"]), len(step["output_tail"])) == (2000, 2000)
    assert traj["trajectory_format"] == "hone-trajectory-1"
    assert traj["info"]["instance_id"] == "org/repo-1"
    assert (traj["info"]["exit_status"], traj["info"]["reward"]) == ("resolved", 1.0)
    assert (directory / "patch.diff").read_bytes() == b"--- a/x\r\n+++ b/x\n"
    meta = json.loads((directory / "meta.json").read_text())
    assert (meta["instance_id"], meta["group_index"], meta["index"]) == ("org/repo-1", 1, 2)


def test_only_the_verdict_file_names_hidden_tests(tmp_path: Path):
    directory = tmp_path / Store(tmp_path).save(example(), group=0, index=0)
    naming = [path.name for path in directory.iterdir() if b"test_hidden" in path.read_bytes()]
    assert naming == ["verdict.json"]


@pytest.mark.parametrize("file", ["traj.json", "meta.json", "verdict.json", "patch.diff", "tokens.parquet"])
@pytest.mark.parametrize("damage", ["missing", "cut"])
def test_error_names_the_damaged_rollout(tmp_path: Path, file: str, damage: str):
    store = Store(tmp_path)
    name = store.save(example(), group=0, index=0)
    path = tmp_path / name / file
    if damage == "missing":
        path.unlink()
    elif file == "patch.diff":
        path.write_bytes(b"\xff")
    else:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(StoreError, match=name):
        store.load(name)


def test_sweep_removes_only_half_written_rollouts(tmp_path: Path):
    store = Store(tmp_path)
    known, unknown = store.save(example(), group=0, index=0), store.save(example(), group=0, index=1)
    (tmp_path / ".partial-t__g0__i2__1").mkdir()
    (tmp_path / "notes.txt").write_text("mine")
    assert store.sweep([known]) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["notes.txt", known])
    assert not (tmp_path / unknown).exists()


FILL_A_SMALL_DISK = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from hone.rollout.errors import StoreError
from hone.rollout.store import Store
from test_store import assert_same, example
store, names = Store(Path(sys.argv[2]) / "rollouts"), []
try:
    while True:
        names.append(store.save(example(patch="x" * 100_000), group=0, index=len(names)))
except StoreError as error:
    print(error)
for name in names:
    assert_same(store.load(name), example(patch="x" * 100_000))
assert len(names) > 3, names
assert sorted(p.name for p in store.root.iterdir()) == sorted(names)  # nothing half-written stays
"""


@pytest.mark.sandbox
def test_full_disk_is_one_clear_error_and_loses_nothing(tmp_path: Path):
    unshare = shutil.which("unshare")
    assert unshare is not None
    disk = tmp_path / "disk"
    disk.mkdir()
    script = 'mount -t tmpfs -o size=1m tmpfs "$1" && exec "$2" -c "$3" "$4" "$1"'
    command = [
        "bash",
        "-c",
        script,
        "-",
        str(disk),
        sys.executable,
        FILL_A_SMALL_DISK,
        str(Path(__file__).parent),
    ]
    done = subprocess.run(
        [unshare, "--map-root-user", "--mount", *command], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "is full: free some space and run the same command again" in done.stdout


def test_rollout_can_be_loaded_by_its_directory(tmp_path: Path):
    name = Store(tmp_path).save(example(), group=0, index=0)
    assert_same(load(tmp_path / name), example())


def test_rollout_without_sampler_metadata_is_loaded(tmp_path: Path):
    directory = tmp_path / Store(tmp_path).save(example(), group=0, index=0)
    meta = json.loads((directory / "meta.json").read_text())
    (directory / "meta.json").write_text(json.dumps({**meta, "sample_metadata": {}}))
    assert load(directory).sampler == Sampler()


def test_samples_that_end_together_get_separate_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("hone.rollout.store.time.time_ns", lambda: 1_700_000_000_000_000_000)
    store = Store(tmp_path)
    names = [store.save_sample(example(), index=i, meta={"model": "m", "max_tokens": 9}) for i in range(3)]
    assert len(set(names)) == 3
    assert all(re.fullmatch(r"org_repo-1__\d{19}", name) for name in names)
    assert store.names() == sorted(names)
    assert [json.loads((tmp_path / name / "meta.json").read_text())["index"] for name in names] == [0, 1, 2]
    meta = json.loads((tmp_path / names[0] / "meta.json").read_text())
    assert (meta["model"], meta["max_tokens"], meta["instance_id"]) == ("m", 9, "org/repo-1")
    assert_same(store.load(names[0]), example())
    assert store.sweep(names[:1]) == 2


COUNT_THREADS = """
import os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from hone.rollout.store import Store
from test_store import example
store = Store(Path(sys.argv[2]) / "rollouts")
before = len(os.listdir("/proc/self/task"))
store.load(store.save(example(), group=0, index=0))
print(len(os.listdir("/proc/self/task")) - before)
"""


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are counted in /proc")
@pytest.mark.slow
def test_loading_a_rollout_starts_no_threads(tmp_path: Path):
    command = [sys.executable, "-c", COUNT_THREADS, str(Path(__file__).parent), str(tmp_path)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "0\n"
