"""Models by name, with the hub's real client, a cache in a temporary folder and a small server as the hub."""

from __future__ import annotations

import hashlib
import json
import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from hone.config import make_plan, resolve
from hone.config.shapes import folder_shape
from hone.policy.errors import PolicyError
from hone.policy.hub import cached_model, config_folder, find_model, locate_model, pin_model
from hone.policy.model import load_model, load_tokenizer
from hone.policy.settings import ModelSettings

NAME = "maker/Tiny-0.1B"
OLD, NEW = "a" * 40, "b" * 40  # commits
UNREACHABLE = "http://127.0.0.1:9"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the hub's cache of the test; the hub cannot be reached."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", UNREACHABLE)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "hub"


def put(cache: Path, folder: Path, commit: str = OLD, ref: str = "main") -> Path:
    """Store a model in the layout of the hub's cache; return its snapshot."""
    repo = cache / f"models--{NAME.replace('/', '--')}"
    snapshot = repo / "snapshots" / commit
    shutil.copytree(folder, snapshot)
    (repo / "refs").mkdir(exist_ok=True)
    (repo / "refs" / ref).write_text(commit)
    return snapshot


def model(**more: str) -> ModelSettings:
    return ModelSettings(path=Path(NAME), **more)  # type: ignore[arg-type]


def refused(settings: ModelSettings) -> str:
    with pytest.raises(PolicyError) as caught:
        locate_model(settings)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.fixture
def hub(model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Serve `model_folder` as NAME at commit NEW; yield the names of the files that were fetched."""
    contents = {path.name: path.read_bytes() for path in model_folder.iterdir()}
    contents |= {"onnx/model.safetensors": b"x", "consolidated.safetensors": b"x", "model.gguf": b"x"}
    fetched: list[str] = []

    class Hub(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            path = urlsplit(self.path).path
            api, resolve = f"/api/models/{NAME}", f"/{NAME}/resolve/{NEW}/"
            if path in (api, f"{api}/revision/main", f"{api}/revision/{NEW}"):
                self.answer(json.dumps({"id": NAME, "sha": NEW, "siblings": []}).encode())
            elif path == f"{api}/tree/{NEW}":
                entries = [
                    {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                    for name, data in contents.items()
                ]
                self.answer(json.dumps(entries).encode())
            elif path.startswith(resolve) and path.removeprefix(resolve) in contents:
                name = path.removeprefix(resolve)
                if self.command == "GET":
                    fetched.append(name)
                etag = hashlib.sha1(contents[name]).hexdigest()
                self.answer(contents[name], {"ETag": f'"{etag}"', "X-Repo-Commit": NEW})
            else:
                code = "RevisionNotFound" if path.startswith(api) else "RepoNotFound"
                self.answer(b"", {"X-Error-Code": code}, status=404)

        def answer(self, data: bytes, headers: dict[str, str] | None = None, status: int = 200) -> None:
            self.send_response(status)
            for key, value in ({"Content-Length": str(len(data))} | (headers or {})).items():
                self.send_header(key, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(data)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}"
    template = url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", url)
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
    try:
        yield fetched
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_folder_is_used_as_it_is(model_folder: Path, tmp_path: Path) -> None:
    assert find_model(ModelSettings(path=model_folder)).path == model_folder
    shutil.copytree(model_folder, tmp_path / NAME)  # a folder precedes a hub model of the same name
    assert find_model(model()).path == Path(NAME)
    assert "model.revision has no effect on the folder" in refused(model(revision="main"))


def test_cached_hub_model_needs_no_network(cache: Path, model_folder: Path) -> None:
    assert cached_model(model()) is None
    snapshot = put(cache, model_folder)
    for settings in (model(), model(revision="main"), model(revision=OLD)):
        located = locate_model(settings)
        assert (located.folder.resolve(), located.commit) == (snapshot.resolve(), OLD)
    load_model(find_model(model()).path)
    load_tokenizer(find_model(model()).path)


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json", "model.safetensors"])
def test_incomplete_snapshot_counts_as_not_cached(cache: Path, model_folder: Path, missing: str) -> None:
    (put(cache, model_folder) / missing).unlink()
    assert cached_model(model()) is None
    assert f"hf download {NAME}" in refused(model())


def test_snapshot_without_one_of_its_shards_is_incomplete(cache: Path, model_folder: Path) -> None:
    snapshot = put(cache, model_folder)
    shards = {"a": "model-1-of-2.safetensors", "b": "model-2-of-2.safetensors"}
    (snapshot / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    (snapshot / "model.safetensors").rename(snapshot / shards["a"])
    assert cached_model(model()) is None
    shutil.copy(snapshot / shards["a"], snapshot / shards["b"])
    assert cached_model(model()) is not None


def test_unreachable_hub_is_one_sentence_with_the_command() -> None:
    message = refused(model(revision="v2"))
    assert message.startswith(f"the model {NAME} is neither a folder nor in the cache ")
    assert f"{UNREACHABLE} cannot be read (" in message
    assert f"run `hf download {NAME} --revision v2` where it can" in message


def test_hub_model_is_downloaded_once_without_other_formats(hub: list[str], model_folder: Path) -> None:
    located = locate_model(model())
    assert located.commit == NEW
    assert sorted(hub) == sorted(path.name for path in model_folder.iterdir())
    load_model(located.folder)
    hub.clear()
    assert locate_model(model()) == located
    assert hub == []


def test_plan_of_a_hub_model_fetches_its_configuration_only(hub: list[str], tmp_path: Path) -> None:
    settings = resolve(None, [f"model.path={NAME}", f"run_dir={tmp_path}", "tasks.train=1"])
    plan = make_plan(settings, "train")
    assert hub == ["config.json"]
    assert plan.parameters == folder_shape(config_folder(model())).parameters
    assert plan.downloads == (NAME,)
    hub.clear()
    assert make_plan(settings, "train") == plan
    assert hub == []
    locate_model(model())
    assert make_plan(settings, "train").downloads == ()


def test_unknown_name_and_revision_are_refused(hub: list[str]) -> None:
    assert "has no revision v9: correct model.revision" in refused(model(revision="v9"))
    message = refused(ModelSettings(path=Path("maker/typo")))
    assert message.startswith("there is neither a folder maker/typo nor such a model on http://127.0.0.1")


def test_run_keeps_the_commit_that_it_started_from(
    cache: Path, model_folder: Path, tmp_path: Path, hub: list[str]
) -> None:
    pin = tmp_path / "model.json"
    first = put(cache, model_folder, OLD)
    assert pin_model(model(), pin).path.resolve() == first.resolve()
    assert json.loads(pin.read_text()) == {"path": NAME, "revision": None, "commit": OLD}
    newer = cache / "models--maker--Tiny-0.1B"
    shutil.copytree(first, newer / "snapshots" / NEW)
    (newer / "refs" / "main").write_text(NEW)
    assert pin_model(model(), pin).path.resolve() == first.resolve()
    assert find_model(model(), pin=pin).path.resolve() == first.resolve()
    assert find_model(model()).path.name == NEW
    assert find_model(model(revision="main"), pin=pin).path.name == NEW  # another setting, another model
