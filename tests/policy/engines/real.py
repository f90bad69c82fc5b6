"""The kinds of real servers that tests run against.

For SGLang, HONE_SGLANG_PYTHON names an interpreter that has the package: `pytest -m sglang`.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest

_SGLANG = os.environ.get("HONE_SGLANG_PYTHON", "")
PYTHON = {"vllm": Path(sys.executable), "sglang": Path(_SGLANG)}  # has the kind's package
KINDS = [
    pytest.param(
        "vllm",
        marks=[
            pytest.mark.vllm,
            pytest.mark.e2e,  # by the time it takes
            pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed"),
        ],
    ),
    pytest.param(
        "sglang",
        marks=[
            pytest.mark.sglang,
            pytest.mark.skipif(not _SGLANG, reason="HONE_SGLANG_PYTHON names no interpreter"),
        ],
    ),
]
