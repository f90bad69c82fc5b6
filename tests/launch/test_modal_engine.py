"""The recipe that serves a model in Modal's cloud, as far as it goes without an account."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

RECIPE = Path(__file__).parents[2] / "recipes" / "modal_engine.py"


@pytest.fixture
def recipe(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    pytest.importorskip("modal", reason="modal is not installed")
    monkeypatch.setenv("MODEL_NAME", "some/model")
    spec = importlib.util.spec_from_file_location("modal_engine", RECIPE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_modal_accepts_the_app(recipe: ModuleType):
    assert recipe.app.name == "hone-engine"
    assert isinstance(recipe.serve, recipe.modal.Function)
    assert recipe.VARIABLES == {"MODEL_NAME": "some/model", "MAX_MODEL_LEN": "32768"}


def test_container_starts_the_server_with_hones_flags(
    recipe: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    started = []
    (tmp_path / "vllm.py").touch()  # the container's image has the package installed
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("MAX_MODEL_LEN", "4096")
    monkeypatch.setattr(recipe.subprocess, "Popen", lambda command, env: started.append((command, env)))
    recipe.serve.local()
    [(command, environment)] = started
    words = " ".join(command)
    assert "--model some/model" in words
    assert "--max-model-len 4096" in words
    assert "--logprobs-mode processed_logprobs" in words
    assert "--enable-scale-out" in words
    assert "--host 0.0.0.0 --port 8000" in words
    assert environment["VLLM_SERVER_DEV_MODE"] == "1"
    assert environment["HF_HUB_OFFLINE"] == "0"
