"""Model folders: the tiny model is a plain Qwen3; an unusable folder is refused."""

from __future__ import annotations

import json
import shutil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hone.policy.errors import PolicyError
from hone.policy.model import load_model, load_tokenizer, make_renderer
from hone.policy.settings import TinyModelSettings
from hone.policy.tiny import make_tiny, make_tokenizer
from tests.policy.conftest import SETTINGS, TEXTS


def refused(action, *arguments) -> str:
    with pytest.raises(PolicyError) as caught:
        action(*arguments)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.fixture
def folder(model_folder, tmp_path):
    """Return a copy of the model folder for tests that corrupt it."""
    return shutil.copytree(model_folder, tmp_path / "model")


def pieces(tokenizer, text: str) -> list[str]:
    return [tokenizer.decode([i]) for i in tokenizer.encode(text, add_special_tokens=False)]


@settings(deadline=None)
@given(text=st.text() | st.text(alphabet="ab_x =\n\t 0`'|<>é"))
def test_encode_and_decode_preserve_every_text(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_words_operators_indents_and_line_numbers_are_one_token_each(tokenizer):
    line = "     4\t|        |total| += |item|.|price| * |(|1| + |tax|)|\n"
    assert pieces(tokenizer, line.replace("|", "")) == line.split("|")
    assert pieces(tokenizer, "for item in items:\n    total") == [
        "for ",
        "item",
        " in ",
        "items",
        ":",
        "\n    ",
        "total",
    ]


def test_word_is_the_same_token_with_and_without_a_space_before_it(tokenizer):
    assert pieces(tokenizer, "return price") == ["return ", "price"]
    assert pieces(tokenizer, "items price/price") == ["items", " ", "price", "/", "price"]


def test_message_header_is_two_tokens(tokenizer):
    for role in ("system", "user", "assistant"):
        assert pieces(tokenizer, f"<|im_start|>{role}\n") == ["<|im_start|>", f"{role}\n"]


def test_vocabulary_size_is_bounded_and_reproducible():
    texts = [f"word{chr(97 + i % 26)}{chr(97 + i // 26)} " * 3 for i in range(600)]
    sizes = TinyModelSettings(vocab_size=400)
    first, second = (make_tokenizer(texts, sizes) for _ in range(2))
    assert len(first) == 400
    assert first.get_vocab() == second.get_vocab()


@pytest.mark.parametrize("name", ["auto", "qwen3", "default"])
def test_renderer_gives_the_tokens_of_the_chat_template(tokenizer, name):
    messages = [
        {"role": "system", "content": "You fix bugs."},
        {"role": "user", "content": "     1\tx = 1"},
        {"role": "assistant", "content": "```bash\nls\n```"},
        {"role": "user", "content": "\n    go on"},
        {"role": "assistant", "content": "  x"},
        {"role": "user", "content": ""},
    ]
    expected = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert make_renderer(tokenizer, name).render_ids(messages, add_generation_prompt=True) == expected
    assert "<think>" not in tokenizer.decode(expected)


@pytest.mark.model
def test_plain_transformers_loads_the_tiny_model(model_folder):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(model_folder)
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    assert model.config.model_type == "qwen3"
    assert model.generation_config.eos_token_id == [tokenizer.eos_token_id, tokenizer.pad_token_id]
    ids = tokenizer.apply_chat_template([{"role": "user", "content": "total"}], return_tensors="pt")[
        "input_ids"
    ]
    assert torch.isfinite(model(ids).logits).all()
    assert tokenizer.get_vocab() == load_tokenizer(model_folder).get_vocab()


@pytest.mark.model
def test_default_tiny_model_is_small_and_reproducible(tmp_path):
    import torch

    one, two = (load_model(make_tiny(TEXTS, tmp_path / name)) for name in ("one", "two"))
    assert sum(p.numel() for p in one.parameters()) < 1_500_000
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))


@pytest.mark.model
def test_making_a_model_keeps_the_random_state(tmp_path):
    import torch

    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    make_tiny(TEXTS, tmp_path / "model", SETTINGS)
    assert torch.equal(torch.rand(1), expected)


@pytest.mark.model
def test_missing_folder_is_named(tmp_path):
    assert "nowhere" in refused(load_model, tmp_path / "nowhere")
    assert "nowhere" in refused(load_tokenizer, tmp_path / "nowhere")


@pytest.mark.model
def test_incomplete_folder_names_the_missing_file(folder):
    (folder / "tokenizer.json").unlink()
    assert "no tokenizer" in refused(load_tokenizer, folder)
    (folder / "model.safetensors").unlink()
    assert "safetensors" in refused(load_model, folder)
    (folder / "config.json").write_text('{"model_type": ')
    assert "not JSON" in refused(load_model, folder)
    (folder / "config.json").unlink()
    assert "config.json" in refused(load_model, folder)


@pytest.mark.parametrize("kept", [0.0, 0.001, 0.5, 0.999])
@pytest.mark.model
def test_truncated_weights_are_refused(folder, kept):
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[: int(weights.stat().st_size * kept)])
    assert "corrupt" in refused(load_model, folder)


@pytest.mark.model
def test_unreadable_tokenizer_is_refused(folder):
    (folder / "tokenizer.json").write_text("{")
    assert "tokenizer" in refused(load_tokenizer, folder)


@pytest.mark.model
def test_unknown_model_type_is_refused(folder):
    (folder / "config.json").write_text(json.dumps({"model_type": "no-such-model"}))
    assert "no-such-model" in refused(load_model, folder)


@pytest.mark.model
def test_tokenizer_without_chat_template_is_refused(folder):
    (folder / "chat_template.jinja").unlink()
    assert "no chat template" in refused(make_renderer, load_tokenizer(folder))


@pytest.mark.parametrize("name", ["auto", "default"])
@pytest.mark.model
def test_failing_chat_template_is_refused(folder, name):
    (folder / "chat_template.jinja").write_text("{{ raise_exception('users only') }}")
    assert "users only" in refused(make_renderer, load_tokenizer(folder), name)


@pytest.mark.model
def test_unknown_chat_template_needs_renderer_default(folder):
    (folder / "chat_template.jinja").write_text(
        "{% for m in messages %}{{ m.role }}: {{ m.content }};{% endfor %}"
    )
    tokenizer = load_tokenizer(folder)
    assert "'default'" in refused(make_renderer, tokenizer)
    rendered = make_renderer(tokenizer, "default").render_ids([{"role": "user", "content": "total"}])
    assert tokenizer.decode(rendered) == "user: total;"


def test_unknown_or_unfit_renderer_is_refused(tokenizer):
    assert "qwen3" in refused(make_renderer, tokenizer, "qwen33")
    assert "does not fit" in refused(make_renderer, tokenizer, "gpt-oss")


def test_thinking_false_needs_a_family_with_a_switch(tokenizer):
    messages = [{"role": "user", "content": "Fix the bug."}]
    told = make_renderer(tokenizer, "qwen3", thinking=False).render_ids(messages, add_generation_prompt=True)
    free = make_renderer(tokenizer, "qwen3").render_ids(messages, add_generation_prompt=True)
    assert told[: len(free)] == free
    assert tokenizer.decode(told[len(free) :]) == "<think>\n\n</think>\n\n"
    for name in ("default", "deepseek-v3"):
        with pytest.raises(PolicyError, match=r"model\.(thinking|renderer)"):
            make_renderer(tokenizer, name, thinking=False)
