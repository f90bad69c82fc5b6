from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def voice(renderer, tokenizer):
    """A renderer and its tokenizer."""
    return renderer, tokenizer
