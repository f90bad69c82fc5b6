from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def renderer_and_tokenizer(renderer, tokenizer):
    """A renderer and its tokenizer."""
    return renderer, tokenizer
