from __future__ import annotations

from pathlib import Path

import pytest

from hone.policy.model import load_model, make_renderer
from hone.policy.settings import TinyModelSettings
from hone.policy.tiny import make_tiny, make_tokenizer

TEXTS = [
    "Fix the bug in `total_price`: it returns the wrong value for an empty list.\n",
    "     1\tdef total_price(items, tax):\n     2\t    total = 0\n     3\t    for item in items:\n"
    "     4\t        total += item.price * (1 + tax)\n     5\t    return total\n",
    "def count(items):\n    total = 0\n    return total\n",
    "```bash\nsed -i '4s/total += /total -= /' shop.py && git diff\n```",
] * 3
SETTINGS = TinyModelSettings(
    hidden_size=64,
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=16,
    intermediate_size=128,
    initializer_range=0.1,  # far from uniform, so that a wrong context shows in every log-probability
)


@pytest.fixture(scope="session")
def tokenizer():
    return make_tokenizer(TEXTS, SETTINGS)


@pytest.fixture(scope="session")
def renderer(tokenizer):
    return make_renderer(tokenizer, "qwen3")


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory) -> Path:
    return make_tiny(TEXTS, tmp_path_factory.mktemp("model"), SETTINGS)


@pytest.fixture
def model(model_folder):
    """A model of the test's own, since some tests change its weights."""
    return load_model(model_folder)
