from dataclasses import replace

import pytest

from hone.tasks.curriculum import generate
from hone.tasks.errors import TaskError
from hone.tasks.files import write_rows
from hone.tasks.formats import save
from hone.tasks.settings import TasksSettings
from hone.tasks.sources import check_complete, check_proven, load_all, load_splits
from hone.types import Environment

SMALL = TasksSettings(train=6, test=3, unseen=2)


def test_saved_curriculum_gives_the_same_sets(tmp_path):
    splits = load_splits(SMALL)
    assert splits == generate(SMALL)
    path = tmp_path / "tasks.jsonl"
    save([task for _, tasks in splits.named() for task in tasks], path)
    assert load_splits(TasksSettings(source=str(path))) == splits


def test_file_with_unknown_set_or_overlap_is_refused(tmp_path):
    path = tmp_path / "tasks.jsonl"
    settings = TasksSettings(source=str(path))
    first, second = generate(SMALL).train[:2]
    save([replace(first, metadata={"split": "dev"})], path)
    with pytest.raises(TaskError, match="of the set 'dev'"):
        load_splits(settings)
    save([first, replace(first, id="again", metadata={"split": "test"})], path)
    with pytest.raises(TaskError, match=r"again \(test\) has the content of train-0000 \(train\)"):
        load_splits(settings)
    save([first, replace(second, environment=Environment(image="host"))], path)
    with pytest.raises(TaskError, match="train-0001: its repository is empty"):
        load_splits(settings)


def test_task_without_tests_is_refused():
    task = generate(SMALL).train[0]
    with pytest.raises(TaskError, match="fail_to_pass"):
        check_complete(replace(task, checks=replace(task.checks, fail_to_pass=())))
    with pytest.raises(TaskError, match="test_hidden"):
        check_complete(replace(task, checks=replace(task.checks, test_files={})))


def test_unproven_tasks_need_a_setting():
    curriculum = generate(SMALL).train[0]
    proven = replace(curriculum, source="mined", metadata={"validation": {"repeats": 3}})
    unproven = replace(curriculum, id="unvalidated", source="mined", metadata={})
    settings = TasksSettings(source="mine.jsonl")
    check_proven(settings, [proven, curriculum])  # those of the curriculum are right by construction
    with pytest.raises(
        TaskError, match=r"mine\.jsonl has no proof .* unvalidated\. Run `hone tasks validate"
    ):
        check_proven(settings, [proven, unproven])
    check_proven(settings.model_copy(update={"unproven": True}), [unproven])


def test_validation_file_replaces_the_validation_tasks(tmp_path):
    splits = load_splits(TasksSettings(train=3, validation=1, test=1, unseen=0))
    save(splits.train[:2], tmp_path / "train.jsonl")
    save(splits.train[2:], tmp_path / "val.jsonl")
    settings = TasksSettings(source=str(tmp_path / "train.jsonl"), validation_source=tmp_path / "val.jsonl")
    found = load_splits(settings)
    assert (found.train, found.validation) == (splits.train[:2], splits.train[2:])
    with pytest.raises(TaskError, match="the task sets overlap"):
        load_splits(settings.model_copy(update={"validation_source": tmp_path / "train.jsonl"}))


def test_published_name_of_a_training_set_is_read(tmp_path):
    rows = [
        {
            "task_id": f"t{number}",
            "problem_statement": "It fails.",
            "extra_info": {
                "entrypoint": "python -m pytest --tb=no -s test.py",
                "files": [
                    {"content": f"def f(): return {number}", "path": "a.py"},
                    {"content": "def test_a(): assert 0", "path": "test.py"},
                ],
                "task_name": f"t{number}",
            },
        }
        for number in range(3)
    ]
    write_rows(rows, tmp_path / "rl_train.parquets")
    assert (tmp_path / "rl_train.parquets").read_bytes()[:4] == b"PAR1"
    found = load_splits(TasksSettings(source=str(tmp_path / "rl_train.parquets")))
    assert [task.id for task in found.train] == ["t0", "t1", "t2"]
    assert [task.id for task in load_all(tmp_path)] == ["t0", "t1", "t2"]  # the folder of one shard
