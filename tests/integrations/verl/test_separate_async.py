"""A training of real verl with `separate_async`: the server is apart from the trainer, and one step ahead.

verl's own engines of weights need GPUs or their network; the weights go through a folder instead, by verl's
registry of such engines (`in_verl/hone_verl_engine.py`). The server keeps all versions, so that each token is
compared with the weights that sampled it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from hone.integrations.rollouts.branches import branches
from hone.types import Float32, TokenTree
from tests.integrations.verl.training import MODEL, REAL_VERL, Training, recipe, train

pytestmark = REAL_VERL
STEPS, STALENESS = 4, 1
FOLDER_OF_WEIGHTS = [
    "actor_rollout_ref.rollout.checkpoint_engine.backend=folder",
    "actor_rollout_ref.rollout.checkpoint_engine.custom_backend_module=hone_verl_engine",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("verl")


@pytest.fixture(scope="module")
def done(folder: Path) -> Training:
    rollout = {"group_size": 4, "concurrent_episodes": 8, "max_staleness": STALENESS}
    return train(folder, recipe(folder, STEPS, groups_per_step=3, rollout=rollout), *FOLDER_OF_WEIGHTS)


def test_no_token_is_staler_than_the_bound(done: Training) -> None:
    assert len(done.batches) == len(done.rewards) == STEPS
    stale = [
        version - row.versions[0]  # a batch is trained with the weights of as many steps
        for version, batch in enumerate(done.batches)
        for row in batch
        if not row.padding
    ]
    assert min(stale) >= 0
    assert max(stale) == STALENESS


def test_tags_of_verl_are_the_versions_of_the_tokens(done: Training) -> None:
    assert len({version for row in done.rows for version in row.versions}) >= STEPS - 1
    for row in done.rows:
        branch = branches(done.stored[row.rollout])[row.branch]
        assert row.versions == (branch.min_version, branch.max_version)
        assert row.response == branch.response_ids.tolist()


def test_logprobs_are_those_of_the_weights_that_sampled(done: Training, folder: Path) -> None:
    weights = weights_of(folder)

    gaps = [
        gap
        for name in {row.rollout for row in done.rows}
        for gap in differences(done.stored[name].tree, weights)
    ]

    assert len(gaps) == sum(sum(row.response_mask) for row in done.rows)
    assert max(gaps) <= 1e-4
    assert max(row.gap for row in done.rows) > 1e-4  # verl's own are of newer weights


def weights_of(folder: Path) -> Callable[[int], Any]:
    """Return the model of each version; 0 is that of the recipe."""
    (published,) = (folder / "peer").glob("weights-*")

    @cache
    def load(version: int) -> Any:
        path = published / f"v{version}" if version else Path(MODEL)
        return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()

    return load


def differences(tree: TokenTree, weights: Callable[[int], Any]) -> list[float]:
    """Return how far each sampled token's log-probability is from that of the weights that sampled it.

    Of a reply that an update interrupted, verl tells the oldest and the newest version but not where it
    changed: a token is compared with the closest of them.
    """
    found: list[float] = []
    for node in tree.nodes:
        if node.sampled:
            versions = range(int(node.version.min()), int(node.version.max()) + 1)
            assert node.parent is not None, "a reply has a prompt"
            before = [int(token) for each in tree.path(node.parent) for token in tree.nodes[each].tokens]
            own = np.stack([logprobs(weights(version), before, node.tokens) for version in versions])
            found += np.abs(own - node.logprobs).min(axis=0).tolist()
    return found


def logprobs(model: Any, before: list[int], tokens: Any) -> Float32:
    ids = torch.tensor([*before, *tokens.tolist()])[None]
    with torch.inference_mode():
        every = torch.log_softmax(model(ids).logits[0, len(before) - 1 : -1], -1)
    return every.gather(1, ids[0, len(before) :, None])[:, 0].numpy()
