"""slime's data source over Hone's tasks."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

import pytest

from hone.config import ConfigError
from hone.integrations.slime.data_source import DataSource
from tests.integrations.slime.stand_in import Sample


def source(folder: Path, **more: object) -> DataSource:
    recipe = folder / "recipe.toml"
    recipe.write_text("seed = 3\n[tasks]\ntrain = 5\ntest = 0\nunseen = 0\n")
    arguments = {"n_samples_per_prompt": 2, "save": str(folder), "load": str(folder), **more}
    return DataSource(Namespace(hone_recipe=str(recipe), **arguments), Sample)


def tasks(groups: list[list[Sample]]) -> list[str]:
    return [group[0].metadata["hone"]["task_id"] for group in groups]


def test_samples_have_global_indices_and_their_group(tmp_path: Path) -> None:
    data = source(tmp_path)

    groups = data.get_samples(3)

    assert [[sample.index for sample in group] for group in groups] == [[0, 1], [2, 3], [4, 5]]
    assert [[sample.group_index for sample in group] for group in groups] == [[0, 0], [1, 1], [2, 2]]
    assert all(len({sample.label for sample in group}) == 1 for group in groups)


def test_an_epoch_has_every_task_once(tmp_path: Path) -> None:
    data = source(tmp_path)

    assert len(set(tasks(data.get_samples(len(data))))) == len(data) == 5


def test_groups_given_back_come_first_and_start_again(tmp_path: Path) -> None:
    data = source(tmp_path)
    first, second = data.get_samples(2)
    second[0].tokens, second[0].reward, second[0].status = [1, 2], 1.0, Sample.Status.COMPLETED

    data.add_samples([[[second[0], second[0]], [second[1]]]])
    again, new = data.get_samples(2)

    assert [sample.index for sample in again] == [2, 3]
    assert all(sample.status is Sample.Status.PENDING and not sample.tokens for sample in again)
    assert again[0].reward is None
    assert new[0].group_index == 2
    assert first[0].index == 0


def test_saved_state_continues_with_the_same_samples(tmp_path: Path) -> None:
    data = source(tmp_path)
    data.add_samples(data.get_samples(4)[1:2])
    data.save(7)
    expected = data.get_samples(3)

    resumed = source(tmp_path)
    resumed.load(7)

    assert resumed.get_samples(3) == expected


def test_without_a_checkpoint_the_first_task_comes(tmp_path: Path) -> None:
    data = source(tmp_path)
    data.load(3)
    data.load(None)
    source(tmp_path, load=None).load(3)

    assert data.get_samples(1)[0][0].index == 0


@pytest.mark.parametrize(
    "text", ["", "{}", '{"position": "x", "queue": []}', '{"position": 1, "queue": [[]]}']
)
def test_damaged_state_is_refused(tmp_path: Path, text: str) -> None:
    data = source(tmp_path)
    path = tmp_path / "rollout" / "hone_data_source_1.json"
    path.parent.mkdir()
    path.write_text(text)

    with pytest.raises(ConfigError, match="is not a state of this data source"):
        data.load(1)


def test_state_is_small_whatever_the_samples_hold(tmp_path: Path) -> None:
    data = source(tmp_path)
    data.add_samples(data.get_samples(2))
    data.save(0)

    state = json.loads((tmp_path / "rollout" / "hone_data_source_0.json").read_text())
    assert state == {"position": 2, "queue": [[0, 1], [2, 3]]}
