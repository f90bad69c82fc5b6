"""Renderers for the model families that the `renderers` package supports."""

# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hone.policy.literal import LiteralTokenizer
from hone.policy.rendering import DAY, FamilyRenderer, first_line

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_HARMONY = "gpt-oss"  # rendered by openai-harmony, which has its own encoder
_HARMONY_OPTIONS: dict[str, Any] = {
    "conversation_start_date": DAY.isoformat(),
    "auto_drop_analysis": False,  # keep past reasoning, as `thinking_retention` does elsewhere
}


def family_names() -> list[str]:
    """Return every family, in the order in which `auto` tries them."""
    from renderers.base import MODEL_RENDERER_MAP

    return list(dict.fromkeys(MODEL_RENDERER_MAP.values()))


def family_renderer(
    tokenizer: PreTrainedTokenizerBase, name: str, *, thinking: bool = True
) -> FamilyRenderer | str:
    """Return the renderer of a family, or the reason why it does not fit this tokenizer.

    Past reasoning stays in the prompt, so sampled tokens are not rendered again. Without `thinking` the
    prompt tells the model not to reason.
    """
    import renderers
    from renderers.configs import config_from_name

    if name not in family_names():
        return f"unknown renderer; choose one of: auto, default, {', '.join(sorted(family_names()))}"
    settings: Any = type(config_from_name(name))
    if not thinking and "enable_thinking" not in settings.model_fields:
        return "the prompts of this family cannot tell a model not to reason: set model.thinking = true"
    options: dict[str, Any] = {} if thinking else {"enable_thinking": False}
    if name == _HARMONY:
        options |= _HARMONY_OPTIONS
    literal = LiteralTokenizer(tokenizer)
    try:
        renderer = renderers.create_renderer(literal, settings(thinking_retention="all", **options))
    except Exception as error:  # renderers raise many types of errors, assertions included
        return first_line(error)
    return FamilyRenderer(renderer, literal, name, own_encoder=name == _HARMONY)
