"""What a recipe may say, and what is said about one that cannot be used."""

from pathlib import Path

import pytest

from hone.config import ConfigError, nearest, resolve


def recipe(folder: Path, text: str, name: str = "run.toml") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def refusal(path: Path, *sets: str) -> str:
    with pytest.raises(ConfigError) as refused:
        resolve(path, sets)
    message = str(refused.value)
    assert "\n" not in message
    return message


def test_recipe_overrides_only_named_settings(tmp_path: Path):
    settings = resolve(recipe(tmp_path, "[train]\nsteps = 7\n[train.loss]\nclip_high = 0.28\n"))
    assert (settings.train.steps, settings.train.loss.clip_high, settings.train.loss.kl_coef) == (
        7,
        0.28,
        0.0,
    )


def test_run_directory_defaults_to_the_recipe_name(tmp_path: Path):
    assert resolve(recipe(tmp_path, "[train]\nsteps = 7\n", "small.toml")).run_dir == Path("runs/small")
    assert resolve(recipe(tmp_path, 'run_dir = "elsewhere"\n', "small.toml")).run_dir == Path("elsewhere")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[train]\n\nstepz = 3\n", "line 3: unknown key train.stepz: did you mean train.steps?"),
        ("[train]\nlr = 3\n", "line 2: unknown key train.lr: did you mean train.optimizer.lr?"),
        ("[trian]\nsteps = 3\n", "line 1: unknown key trian: did you mean train?"),
        ("train.loss.clip = 0.3\n", "line 1: unknown key train.loss.clip: did you mean train.loss.clip_"),
        ("[train.loss]\n# a comment\n clip_hihg = 1\n", "line 3: unknown key train.loss.clip_hihg"),
        (
            "[train]\nmax_staleness = 3\n",
            "line 2: train.max_staleness was removed (it is rollout.max_staleness)",
        ),
        ("xyzzy = 1\n", "line 1: unknown key xyzzy: `--help-config` lists the valid ones"),
        ("train = 3\n", "line 1: train is a group, not a value; set one of its keys (learner,"),
        ('[train]\nsteps = "ten"\n', "line 2: train.steps = 'ten': it should be a valid integer"),
        ("[train]\nsteps = 0\n", "line 2: train.steps = 0: it should be greater than or equal to 1"),
        ('[agent]\nkind = "orcale"\n', "line 2: agent.kind = 'orcale': it should be 'bash'"),
        ('[agent]\nkind = "orcale"\n', "did you mean 'oracle'?"),
        (
            '[agent]\nkind = "oracle"\ntoken_limit = 9\n',
            "line 3: agent.token_limit has no effect with agent.kind = 'oracle': remove it",
        ),
        (
            '[train.algorithm]\nname = "rloo"\nnormalise_std = false\n',
            "line 3: train.algorithm.normalise_std has no effect with train.algorithm.name = 'rloo'",
        ),
        (
            '[train.algorithm]\nname = "step_wise"\nreward = "final"\n',
            "train.algorithm.reward has no effect with train.algorithm.name = 'step_wise'",
        ),
        ('[train.algorithm]\nname = "gpso"\n', "did you mean 'gspo'?"),
        (
            '[train.algorithm]\nname = "cispo"\n[train.loss]\nclip_low = 0.1\n',
            "train.loss.clip_low has no effect with train.algorithm (cispo on the outcome reward): remove it",
        ),
        (
            '[train.corrections]\nkind = "truncate"\nlow = 0.5\n',
            "train.corrections.low has no effect with train.corrections.kind = 'truncate': remove it",
        ),
        ('[train.corrections]\nkind = "mask"\n', 'set train.loss.old_logprobs = "recomputed"'),
        ("[engine]\nurls = []\n", "engine.urls has no effect with engine.kind = 'local': remove it"),
        ('[engine]\nkind = "vllm"\napi_key_env = "K"\n', "api_key_env has no effect on the engine vllm"),
        (
            '[demonstrations.agent]\nkind = "noop"\nshows = "bash"\n',
            "demonstrations.agent.shows has no effect",
        ),
        ("[rollout.rewards]\nresolvd = 2.0\n", "rollout.rewards.resolvd = 'resolvd'"),
        ("[rollout.rewards]\nresolvd = 2.0\n", "did you mean 'resolved'?"),
        ('[rollout]\nmasked = ["resolved"]\n', "line 2: rollout.masked: resolved: only turn_limit"),
        ("[rollout]\npartial = false\n", "rollout: partial has no effect with max_staleness = 0"),
        ("[engine]\nin_flight_updates = true\n", "was removed (it is rollout.partial)"),
        ("[tiny_model]\nheads = 5\nkv_heads = 3\n", "kv_heads (3) must divide heads (5)"),
        (
            '[model]\ndtype = "float32"\n',
            "model.path is missing: set it in the recipe, or with --set model.path=",
        ),
    ],
)
def test_error_is_one_sentence_with_file_and_line(tmp_path: Path, text: str, said: str):
    message = refusal(recipe(tmp_path, text))
    assert said in message
    assert message.startswith(str(tmp_path / "run.toml"))


def test_later_extended_recipe_overrides_earlier(tmp_path: Path):
    recipe(tmp_path, "seed = 1\n[tasks]\ntrain = 5\ntest = 6\n", "one.toml")
    recipe(tmp_path, "[tasks]\ntrain = 7\n", "two.toml")
    settings = resolve(recipe(tmp_path, 'extends = ["one.toml", "two.toml"]\n[tasks]\nunseen = 8\n'))
    assert (settings.seed, settings.tasks.train, settings.tasks.test, settings.tasks.unseen) == (1, 7, 6, 8)


def test_extends_path_is_relative_to_the_recipe(tmp_path: Path):
    recipe(
        tmp_path, "[train]\nsteps = 1\n[train.loss]\nclip_low = 0.1\nclip_high = 0.1\n", "base/eldest.toml"
    )
    recipe(tmp_path, 'extends = "eldest.toml"\n[train.loss]\nclip_low = 0.3\n', "base/middle.toml")
    settings = resolve(recipe(tmp_path, 'extends = "base/middle.toml"\n[tasks]\nseed = 9\n'))
    assert (settings.train.steps, settings.tasks.seed) == (1, 9)
    assert (settings.train.loss.clip_low, settings.train.loss.clip_high) == (0.3, 0.1)


def test_error_in_an_extended_recipe_names_that_recipe(tmp_path: Path):
    recipe(tmp_path, "[train]\nsteps = -1\n", "base.toml")
    assert refusal(recipe(tmp_path, 'extends = "base.toml"\n')).startswith(
        f"{tmp_path / 'base.toml'}, line 2"
    )


def test_extends_cycle_is_an_error(tmp_path: Path):
    recipe(tmp_path, 'extends = "b.toml"\n', "a.toml")
    recipe(tmp_path, 'extends = "c.toml"\n', "b.toml")
    recipe(tmp_path, 'extends = "a.toml"\n', "c.toml")
    assert "in a cycle (a.toml -> b.toml -> c.toml -> a.toml)" in refusal(tmp_path / "a.toml")
    assert "cycle (me.toml -> me.toml)" in refusal(recipe(tmp_path, 'extends = "me.toml"\n', "me.toml"))


def test_missing_or_invalid_extends_is_an_error(tmp_path: Path):
    assert "line 1: extends 'gone.toml', which does not exist" in refusal(
        recipe(tmp_path, 'extends = "gone.toml"\n')
    )
    for wrong in ("3", '["base.toml", 3]'):
        recipe(tmp_path, "seed = 1\n", "base.toml")
        text = refusal(recipe(tmp_path, f"extends = {wrong}\n"))
        assert "extends must be a recipe or a list of recipes" in text
        assert text.endswith(f"got {wrong}".replace('"', "'"))


@pytest.mark.parametrize(
    ("text", "read", "value"),
    [
        ("train.steps=3", lambda s: s.train.steps, 3),
        ("train.optimizer.lr=3e-4", lambda s: s.train.optimizer.lr, 3e-4),
        ("train.algorithm.normalise_std=false", lambda s: s.train.algorithm.normalise_std, False),
        ("tasks.source=data/a=b.jsonl", lambda s: s.tasks.source, "data/a=b.jsonl"),
        ('tasks.source="quoted"', lambda s: s.tasks.source, "quoted"),
        ("rollout.masked=['turn_limit']", lambda s: list(s.rollout.masked), ["turn_limit"]),
        ("rollout.rewards.no_patch=-2", lambda s: s.rollout.rewards["no_patch"], -2.0),
        ("model.path=some/folder", lambda s: str(s.model.path), "some/folder"),
    ],
)
def test_set_option_overrides_the_recipe(tmp_path: Path, text: str, read, value):
    path = recipe(tmp_path, '[train]\nsteps = 50\n[tasks]\nsource = "other.jsonl"\n')
    assert read(resolve(path, [text])) == value


def test_last_set_option_wins(tmp_path: Path):
    assert (
        resolve(recipe(tmp_path, "[train]\nsteps = 1\n"), ["train.steps=2", "train.steps=3"]).train.steps == 3
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("train.steps", "--set 'train.steps' is not of the form a.b=value"),
        ("=3", "--set '=3' is not of the form a.b=value"),
        ("a..b=3", "is not of the form"),
        ("rollout.masked=[1,", "--set rollout.masked: [1, is not a valid TOML value"),
        ("train.stepz=3", "--set: unknown key train.stepz: did you mean train.steps?"),
        ("train.steps=ten", "--set: train.steps = 'ten': it should be a valid integer"),
    ],
)
def test_invalid_set_option_is_an_error(tmp_path: Path, text: str, said: str):
    assert said in refusal(recipe(tmp_path, "[train]\nsteps = 1\n"), text)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"# only a comment\n", "is empty"),
        (
            b"[train\nsteps = 1\n",
            "is not valid TOML: Expected ']' at the end of a table declaration (at line 1",
        ),
        (b"steps = 1\nsteps = 2\n", "is not valid TOML: Cannot overwrite a value (at line 2"),
        (b"\xff\xfe\x00", "is not UTF-8 text"),
    ],
)
def test_invalid_recipe_file_is_an_error(tmp_path: Path, content: bytes, said: str):
    path = tmp_path / "run.toml"
    path.write_bytes(content)
    message = refusal(path)
    assert said in message
    assert str(path) in message


def test_missing_recipe_error_suggests_nearest_name(tmp_path: Path):
    there = recipe(tmp_path, "[train]\nsteps = 1\n", "quickstart.toml")
    assert f"did you mean {there}?" in refusal(tmp_path / "quickstrat.toml")
    assert "is a directory" in refusal(tmp_path)
    assert "Not a directory" in refusal(there / "inside.toml")


def test_partly_set_group_keeps_its_own_defaults(tmp_path: Path):
    optimizer = resolve(recipe(tmp_path, "[sft.optimizer]\nwarmup_steps = 5\n")).sft.optimizer
    assert (optimizer.warmup_steps, optimizer.schedule, optimizer.lr) == (5, "cosine", 1e-5)
    demonstrator = resolve(recipe(tmp_path, "[demonstrations.agent]\naccuracy = 0.5\n")).demonstrations.agent
    assert (demonstrator.kind, demonstrator.accuracy) == ("demonstrator", 0.5)


@pytest.mark.parametrize(
    ("name", "meant"),
    [("stepz", "steps"), ("train.stpes", "train.steps"), ("lr", "train.lr"), ("qqqq", None)],
)
def test_the_nearest_name(name: str, meant: str | None):
    assert nearest(name, ["steps", "train.steps", "train.lr", "sft.epochs"]) == meant


def test_staleness_that_no_rollout_can_reach_is_refused(tmp_path: Path):
    message = refusal(recipe(tmp_path, "[rollout]\nmax_staleness = 3\n[train]\nsteps = 3\n"))
    assert message.startswith(
        "rollout.max_staleness is 3, but in 3 steps (train.steps) a rollout is at most 2"
    )
