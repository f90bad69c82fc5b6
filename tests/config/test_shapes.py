"""Shapes of models that a plan is made for."""

import pytest

from hone.config.shapes import KNOWN, known_shape

# Parameters as their publishers state them, in billions.
STATED = {
    "Qwen/Qwen3-0.6B": 0.6,
    "Qwen/Qwen3-1.7B": 1.7,
    "Qwen/Qwen3-4B": 4.0,
    "Qwen/Qwen3-8B": 8.2,
    "Qwen/Qwen3-14B": 14.8,
    "Qwen/Qwen3-32B": 32.8,
    "Qwen/Qwen3-Coder-30B-A3B-Instruct": 30.5,
}


@pytest.mark.parametrize("name", KNOWN)
def test_known_model_has_published_parameter_count(name: str):
    shape = known_shape(name)
    assert shape is not None
    assert round(shape.parameters / 1e9, 1) == STATED[name]


def test_unknown_model_name_has_no_shape():
    assert known_shape("someone/something") is None
