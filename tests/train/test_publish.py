"""Digests of published tensors, and the folder that every rank writes its share of."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from hone.policy.engines.fingerprint import Fingerprint, compare
from hone.policy.engines.inside.tensor_digest import add_digests, tensor_digest
from hone.train.publish import digest_of, fingerprint, folder_fingerprint, published
from tests.train.architectures import architecture

DTYPES = [torch.float32, torch.bfloat16]
SIZES = st.integers(1, 9)


def matrix(rows: int, columns: int, seed: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)).to(dtype)


@settings(max_examples=40, deadline=None)
@given(
    rows=SIZES, columns=SIZES, cut=st.integers(0, 9), seed=st.integers(0, 99), dtype=st.sampled_from(DTYPES)
)
def test_digests_of_parts_add_up(rows: int, columns: int, cut: int, seed: int, dtype: torch.dtype):
    whole = matrix(rows, columns, seed, dtype)
    cut = min(cut, rows, columns)
    assert tensor_digest(whole) == add_digests(
        tensor_digest(whole[:cut]), tensor_digest(whole[cut:], row=cut)
    )
    left, right = tensor_digest(whole[:, :cut]), tensor_digest(whole[:, cut:], column=cut)
    assert tensor_digest(whole) == add_digests(left, right)


@settings(max_examples=40, deadline=None)
@given(rows=SIZES, columns=SIZES, seed=st.integers(0, 99), dtype=st.sampled_from(DTYPES), data=st.data())
def test_smallest_change_of_one_value_changes_the_digest(
    rows: int, columns: int, seed: int, dtype: torch.dtype, data: st.DataObject
):
    whole = matrix(rows, columns, seed, dtype)
    changed = whole.clone()
    bits = changed.view(torch.int32 if dtype == torch.float32 else torch.int16)
    bits[data.draw(st.integers(0, rows - 1)), data.draw(st.integers(0, columns - 1))] ^= 1
    assert tensor_digest(whole) != tensor_digest(changed)


def test_swapped_rows_and_columns_change_the_digest():
    whole = matrix(6, 6, 0, torch.bfloat16)
    order = torch.tensor([0, 4, 2, 3, 1, 5])
    assert len({tensor_digest(m) for m in (whole, whole[order], whole[:, order], whole.T)}) == 4


def test_parts_of_several_workers_are_compared_together():
    whole = matrix(8, 4, 0, torch.float32)
    published = Fingerprint(tensors={"w": digest_of(whole)})

    def part(tensor: torch.Tensor, row: int) -> dict[str, list[list[object]]]:
        shape = [row, 0, tensor.shape[0], 4, "float32"]
        return {"w": [[*shape, f"{tensor_digest(tensor, row):016x}"]]}

    top, bottom = part(whole[:4], 0), part(whole[4:], 4)
    assert compare(published, [top, bottom]).proven
    assert compare(published, [top, bottom, top]).proven  # a copy
    assert compare(published, [top, part(whole[4:] + 1e-6, 4)]).differing == ["w"]
    assert compare(published, [top, bottom, part(whole[:4] + 1, 0)]).differing == ["w"]  # an older copy
    assert compare(published, [top, part(whole[:4], 4)]).differing == ["w"]  # at another place
    assert compare(published, [top]).unproven == ["w"]
    assert compare(published, [{}]).unproven == ["w"]
    assert compare(published, [part(whole[:4], 0), part(whole[4:], 0)]).unproven == ["w"]  # unknown places


@pytest.mark.parametrize("name", ["qwen3", "qwen3_moe"])
def test_published_tensors_are_those_of_the_written_folder(tmp_path: Path, name: str):
    model = architecture(name)
    model.save_pretrained(tmp_path)
    found = folder_fingerprint(tmp_path)
    assert found == fingerprint(model)
    assert sorted(published(model).manifest["names"]) == sorted(found.tensors)
    if name == "qwen3_moe":
        assert "model.layers.0.mlp.experts.0.gate_proj.weight" in found.tensors
    shapes = [list(tensor.shape) for tensor in published(model).tensors()]
    assert shapes == published(model).manifest["shapes"]


def test_tied_head_of_a_folder_has_the_digest_of_the_embedding(tmp_path: Path):
    weights = matrix(4, 3, 0, torch.float32)
    (tmp_path / "config.json").write_text(json.dumps({"tie_word_embeddings": True}))
    save_file({"model.embed_tokens.weight": weights}, tmp_path / "model.safetensors")
    tensors = folder_fingerprint(tmp_path).tensors
    assert tensors == dict.fromkeys(("model.embed_tokens.weight", "lm_head.weight"), digest_of(weights))
    save_file({"other.weight": weights}, tmp_path / "model.safetensors")  # an embedding of another name
    assert folder_fingerprint(tmp_path).tensors == {"other.weight": digest_of(weights)}
