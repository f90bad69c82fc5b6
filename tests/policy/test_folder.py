from __future__ import annotations

import json
from pathlib import Path

import pytest

from hone.policy.errors import PolicyError
from hone.policy.model import load_model, longest_context, read_config


def folder_with(path: Path, text: str) -> Path:
    (path / "config.json").write_text(text)
    return path


def test_multimodal_config_is_that_of_the_language_model(tmp_path: Path):
    inner = {"vocab_size": 9, "max_position_embeddings": 64}
    assert (
        read_config(folder_with(tmp_path, json.dumps({"text_config": inner, "vision_config": {}}))) == inner
    )
    assert longest_context(tmp_path) == 64
    assert longest_context(folder_with(tmp_path, json.dumps(inner))) == 64
    assert longest_context(folder_with(tmp_path, "{}")) is None


@pytest.mark.parametrize(
    ("text", "message"), [("{", "is not JSON"), ("[1]", "is not a JSON object"), (None, "has no")]
)
def test_invalid_model_folder_is_refused(tmp_path: Path, text: str | None, message: str):
    if text is not None:
        folder_with(tmp_path, text)
    with pytest.raises(PolicyError, match=message):
        read_config(tmp_path)
    with pytest.raises(PolicyError, match="there is no model folder"):
        read_config(tmp_path / "gone")


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("adapter_config.json", "holds only an adapter: pass its base model"),
        ("model.Q4_K_M.gguf", "holds GGUF files: pass the Hugging Face model that they were made from"),
    ],
)
def test_other_formats_are_refused_by_name(tmp_path: Path, file: str, message: str):
    (tmp_path / file).write_text("{}")
    with pytest.raises(PolicyError, match=message):
        read_config(tmp_path)
    with pytest.raises(PolicyError, match="is a single file, but a model is a folder"):
        read_config(tmp_path / file)


@pytest.mark.model
def test_quantised_weights_are_refused(tmp_path: Path):
    folder_with(tmp_path, json.dumps({"quantization_config": {"quant_method": "gptq"}}))
    with pytest.raises(PolicyError, match=r"are quantised \(gptq\), which cannot be trained"):
        load_model(tmp_path)
