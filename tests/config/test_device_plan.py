"""The memory of a run on each device, and what is said about a run that does not fit."""

import json
from pathlib import Path

import pytest

from hone.config import RunSettings, resolve
from hone.config.device_plan import PARTS, DevicePlan, MachinePlan, plan_devices
from hone.config.fitting import refusal, suggest, with_values
from hone.config.run import Command
from hone.utils.devices import Devices, Gpu, equal_devices

CPU = Devices(gpus=(), host_gib=16.0)
SMALL, LARGE, EIGHT = equal_devices(1, 24), equal_devices(1, 80), equal_devices(8, 80)


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "run.toml"
    path.write_text('[model]\npath = "Qwen/Qwen3-8B"\ndtype = "bfloat16"\n[engine]\nkind = "vllm"\n')
    return path


def planned(
    recipe: Path, sets: list[str] | None = None, devices: Devices = EIGHT, command: Command = "train"
) -> MachinePlan:
    return plan_devices(resolve(recipe, sets or []), command, devices)


def trainer(recipe: Path, *sets: str, devices: Devices = EIGHT, command: Command = "train") -> DevicePlan:
    return planned(recipe, list(sets), devices, command).devices[0]


def test_full_training_in_bfloat16_takes_18_bytes_per_parameter(recipe: Path):
    settings = resolve(recipe)
    parts = trainer(recipe).parts
    parameters = 8_190_735_360
    kept = sum(parts[name] for name in ("weights", "masters", "moments"))
    assert kept * 2**30 == pytest.approx(14 * parameters)
    assert parts["gradients"] * 2**30 >= 4 * parameters
    assert parts["engine"] == 0
    assert settings.model is not None


def test_ranks_share_weights_masters_moments_and_gradients(recipe: Path):
    one, four = trainer(recipe), trainer(recipe, "train.learner=ranks", "train.ranks=4")
    for name in ("masters", "moments"):
        assert four.parts[name] == pytest.approx(one.parts[name] / 4)
    assert four.parts["gradients"] < one.parts["gradients"] / 2
    assert four.parts["activations"] == one.parts["activations"]


def test_replicated_ranks_hold_a_whole_copy_each(recipe: Path):
    sets = ["train.learner=ranks", "train.ranks=4"]
    sharded, copied = trainer(recipe, *sets), trainer(recipe, *sets, "train.parallel.replicate=4")
    assert copied.parts["moments"] == pytest.approx(4 * sharded.parts["moments"])


def test_sequence_parallelism_divides_activations(recipe: Path):
    sets = ["train.learner=ranks", "train.ranks=4", "engine.context_tokens=32768"]
    whole, split = trainer(recipe, *sets), trainer(recipe, *sets, "train.parallel.sequence=2")
    assert split.parts["activations"] == pytest.approx(whole.parts["activations"] / 2, rel=0.05)


def test_adapters_need_neither_masters_nor_large_moments(recipe: Path):
    full, lora = trainer(recipe), trainer(recipe, "train.lora.rank=16")
    assert lora.parts["masters"] == 0
    assert lora.parts["moments"] < full.parts["moments"] / 100
    assert lora.parts["weights"] == pytest.approx(full.parts["weights"], rel=0.02)


def test_every_rank_holds_all_adapters_and_a_share_of_their_base(recipe: Path):
    sets = ["train.lora.rank=16"]
    one, four = trainer(recipe, *sets), trainer(recipe, *sets, "train.learner=ranks", "train.ranks=4")
    for name in ("moments", "gradients"):
        assert four.parts[name] == one.parts[name]
    adapters = one.parts["moments"] / 2
    gathered = 2 * (6_946_071_552 / 36) + 1_244_659_712  # two layers and the ends
    base = one.parts["weights"] - adapters
    assert four.parts["weights"] == pytest.approx(base / 4 + adapters + 2 * gathered / 2**30, rel=1e-4)


def test_adapted_experts_take_a_copy_of_the_experts(tmp_path: Path):
    path = tmp_path / "run.toml"
    path.write_text('[model]\npath = "Qwen/Qwen3-Coder-30B-A3B-Instruct"\n[engine]\nkind = "vllm"\n')
    linear = trainer(path, "train.lora.rank=16")
    both = trainer(path, "train.lora.rank=16", 'train.lora.targets=["all-linear", "experts"]')
    adapters = 48 * 128 * 16 * (2 * 2048 + 3 * 768) * 4 / 2**30  # as gradients: one float32 each
    assert both.parts["gradients"] - linear.parts["gradients"] == pytest.approx(adapters, rel=1e-3)
    experts = 48 * 128 * 3 * 2048 * 768 * 4 / 2**30
    assert both.parts["activations"] - linear.parts["activations"] >= experts


def test_checkpointing_keeps_one_input_per_layer(recipe: Path):
    full = trainer(recipe).parts["activations"]
    assert trainer(recipe, "train.memory.activation_checkpointing=true").parts["activations"] < full / 8


def test_offloading_moves_memory_to_the_machine(recipe: Path):
    sets = ["train.memory.offload_optimizer=true", "train.memory.offload_activations=true"]
    kept, moved = planned(recipe), planned(recipe, sets)
    assert moved.devices[0].parts["moments"] == moved.devices[0].parts["masters"] == 0
    assert moved.devices[0].parts["activations"] < kept.devices[0].parts["activations"] / 4
    host = moved.devices[-1]
    assert host.device == "memory of each machine"
    assert host.parts["moments"] > kept.devices[0].parts["moments"]


def test_local_engine_beside_ranks_holds_its_own_weights(recipe: Path):
    """Two copies while it reads new weights, on the CPU; servers leave the run's own process without any."""
    ranks, local = ["train.learner=ranks", "train.ranks=4"], ["engine.kind=local"]
    assert [row.device for row in planned(recipe, ranks).devices] == [f"GPU {n}" for n in range(5)]
    shared = planned(recipe, local).devices
    beside = planned(recipe, [*ranks, *local]).devices
    assert [row.device for row in shared] == ["GPU 0"]
    assert [row.device for row in beside] == [*(f"GPU {n}" for n in range(4)), "memory of each machine"]
    assert (beside[0].parts["engine"], beside[-1].uses) == (0, ("engine",))
    copy, cache = 2 * 8_190_735_360 / 2**30, shared[0].parts["engine"]
    assert beside[-1].parts["engine"] == pytest.approx(2 * copy + cache)
    (adapted,) = planned(recipe, [*ranks, *local, "train.lora.rank=8"]).devices[4:]
    assert adapted.parts["engine"] == pytest.approx(copy + cache)
    on_cpu = planned(recipe, [*ranks, *local, "placement.trainer=cpu"], CPU).devices[0]
    assert on_cpu.parts["engine"] == pytest.approx(2 * copy + cache)


@pytest.mark.parametrize("where", [[], ["placement.trainer=cpu"]])
def test_local_engine_of_an_asynchronous_run_holds_its_own_weights(recipe: Path, where: list[str]):
    devices = CPU if where else EIGHT
    shared = planned(recipe, ["engine.kind=local", *where], devices).devices[0]
    own = planned(recipe, ["engine.kind=local", *where, "rollout.max_staleness=2"], devices).devices[0]
    assert own.parts["engine"] == pytest.approx(shared.parts["engine"] + 4 * 8_190_735_360 / 2**30)


@pytest.mark.parametrize("where", [[], ["placement.trainer=cpu"]])
def test_engine_of_another_precision_holds_its_own_weights_in_it(recipe: Path, where: list[str]):
    devices = CPU if where else EIGHT
    sets = ["engine.kind=local", *where]
    stale = planned(recipe, [*sets, "rollout.max_staleness=2"], devices).devices[0]
    own = planned(recipe, [*sets, "model.dtype=float32", "engine.dtype=bfloat16"], devices).devices[0]
    same = planned(recipe, [*sets, "model.dtype=float32"], devices).devices[0]
    assert own.parts["engine"] == pytest.approx(stale.parts["engine"])
    assert own.parts["weights"] == same.parts["weights"] > stale.parts["weights"]


def test_reference_model_counts_only_with_a_kl_term(recipe: Path):
    assert trainer(recipe).parts["reference"] == 0
    with_kl = trainer(recipe, "train.loss.kl_coef=0.1").parts
    assert with_kl["reference"] == pytest.approx(with_kl["weights"])
    assert trainer(recipe, "train.loss.kl_coef=0.1", "train.lora.rank=8").parts["reference"] == 0


def test_longest_sample_decides_the_activations(recipe: Path):
    short, long = (trainer(recipe, f"engine.context_tokens={n}").parts for n in (1024, 32768))
    assert long["activations"] == pytest.approx(
        16 * short["activations"], rel=0.05
    )  # micro_batch_tokens is 2,048
    assert long["logits"] == pytest.approx(2 * short["logits"], rel=0.02)  # logit_tokens is 4,096


def test_engine_takes_its_share_of_its_own_gpus(recipe: Path):
    plan = planned(recipe, ["engine.servers=2", "engine.tensor_parallel=2", "engine.gpu_memory_fraction=0.5"])
    uses = {device.device: device.uses for device in plan.devices}
    assert uses["GPU 0"] == ("rank 0",)
    assert uses["GPU 1"] == uses["GPU 2"] == ("engine server 0",)
    assert [d.parts["engine"] for d in plan.devices] == [0, 40, 40, 40, 40]


def test_sleeping_engine_and_trainer_do_not_add_up(recipe: Path):
    sets = ["train.lora.rank=16", "train.memory.activation_checkpointing=true", "engine.context_tokens=16384"]
    apart = ["placement.trainer=[0]", "placement.engine=[[0]]", "engine.gpu_memory_fraction=0.7"]
    awake = planned(recipe, [*sets, *apart], LARGE).devices[0]
    asleep = planned(
        recipe, [*sets, "engine.gpu_memory_fraction=0.7", "placement.colocate=true"], LARGE
    ).devices[0]
    assert awake.total == pytest.approx(sum(awake.parts.values()))
    assert asleep.total < awake.total - 5
    assert asleep.parts == awake.parts


def test_engine_too_small_for_its_weights_is_refused(recipe: Path):
    plan = planned(recipe, ["engine.gpu_memory_fraction=0.1", "train.lora.rank=8"])
    assert "engine server 0 needs 16." in plan.problem
    assert "gpu_memory_fraction gives it 8.0" in plan.problem


def test_gpu_filled_by_another_process_is_named(recipe: Path):
    filled = Gpu(name="", memory_gib=80, free_gib=20, processes=(4711,))
    devices = Devices(gpus=(LARGE.gpus[0], filled), host_gib=256)
    sets = ["train.lora.rank=8", "train.memory.activation_checkpointing=true"]
    plan = planned(recipe, sets, devices)
    assert plan.problem.endswith(
        "GPU 1 has 20.0 of 80.0 GiB free, because process 4711 uses the rest, and the run needs 68.0: "
        "stop it, or name other GPUs in [placement]"
    )


def test_cpu_run_counts_trainer_and_engine_together(tmp_path: Path):
    path = tmp_path / "run.toml"
    path.write_text("makes_model = true\n[engine]\nkind = 'sglang'\nservers = 2\n")
    (row,) = planned(path, devices=CPU).devices
    assert row.device == "CPU"
    assert row.parts["engine"] == pytest.approx(2 * (row.parts["weights"] + 32 * 2048 * 1536 / 2**30))
    assert row.parts["masters"] == 0  # float32 weights are their own masters
    assert row.total == pytest.approx(sum(row.parts[name] for name in PARTS))


def test_sft_plans_no_engine_and_eval_no_trainer(recipe: Path):
    assert [d.uses for d in planned(recipe, command="sft").devices] == [("rank 0",)]
    (server,) = planned(recipe, command="eval").devices
    assert server.uses == ("engine server 0",)
    assert server.parts["moments"] == server.parts["weights"] == 0


@pytest.mark.parametrize("devices", [SMALL, LARGE, EIGHT], ids=lambda devices: devices.describe())
@pytest.mark.parametrize("sets", [[], ["engine.context_tokens=32768"], ["engine.tensor_parallel=4"]])
def test_suggested_settings_fit_by_the_same_plan(recipe: Path, devices: Devices, sets: list[str]):
    settings = resolve(recipe, sets)
    changes = suggest(settings, "train", devices)
    text = refusal(settings, "train", devices)
    plan = plan_devices(settings, "train", devices)
    assert not plan.fits
    assert "\n" not in text
    if not changes:
        advice = (
            plan.placement_error or "No setting makes it fit: use more or larger GPUs, or a smaller model"
        )
        assert text.endswith(advice)
        return
    assert changes[0].describe() in text
    changed = with_values(settings, {p: v for change in changes for p, v in change.values.items()})
    assert plan_devices(changed, "train", devices).fits


def test_suggested_text_is_accepted_by_set(recipe: Path):
    settings = resolve(recipe, ["engine.context_tokens=16384"])
    changes = suggest(settings, "train", LARGE)
    lines = [line for change in changes for line in change.describe().split(", ")]
    again = resolve(recipe, ["engine.context_tokens=16384", *(line.replace(" = ", "=", 1) for line in lines)])
    assert lines
    assert plan_devices(again, "train", LARGE).fits


def test_run_that_fits_has_no_refusal():
    assert refusal(resolve("recipes/quickstart.toml"), "quickstart", CPU) == ""


def test_plan_is_printed_as_json_per_device(
    recipe: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    from hone.cli import main

    monkeypatch.setattr("sys.argv", ["hone", "plan", str(recipe), "--gpus", "8", "--json"])
    assert main() == 1
    printed = json.loads(capsys.readouterr().out)
    assert printed["fits"] is False
    assert {*PARTS, "total", "memory", "fits", "device", "uses"} == set(printed["devices"][0])
    assert printed["devices"][0]["fits"] is False
    assert printed["problem"]


def test_changed_settings_keep_what_the_recipe_sets(recipe: Path):
    settings = resolve(recipe, ["train.algorithm.normalise_std=false", "engine.max_batch=7"])
    changed: RunSettings = with_values(settings, {"train.ranks": 2, "train.learner": "ranks"})
    assert changed.engine == settings.engine
    assert changed.train.algorithm == settings.train.algorithm
    assert changed.train.ranks == 2


@pytest.mark.parametrize("option", [("--gpu-memory", "nan"), ("--gpu-memory", "0"), ("--host-memory", "-5")])
def test_memory_that_no_machine_has_is_a_usage_error(
    recipe: Path,
    option: tuple[str, str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    from hone.cli import main

    monkeypatch.setattr("sys.argv", ["hone", "plan", str(recipe), "--gpus", "8", *option])
    assert main() == 2
    assert f"{option[0]} is {option[1]}: pass the memory in GiB, above 0" in capsys.readouterr().err


def test_training_again_on_stored_rollouts_plans_the_trainer_alone(recipe: Path):
    sets = ["placement.colocate=true", "train.lora.rank=8"]
    (row,) = planned(recipe, sets, LARGE, "replay").devices
    assert (row.uses, row.parts["engine"]) == (("rank 0",), 0)
    assert row.parts["moments"] == trainer(recipe, *sets, devices=LARGE).parts["moments"]


def test_training_again_that_does_not_fit_is_refused_before_it_starts(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    from hone.cli import main

    run, out = tmp_path / "run", tmp_path / "again"
    run.mkdir()
    (run / "config.toml").write_text(recipe.read_text())
    monkeypatch.setattr("hone.utils.devices.find_devices", lambda: CPU)
    monkeypatch.setattr("sys.argv", ["hone", "replay", str(run), "--out", str(out)])
    assert main() == 2
    assert "the run does not fit one machine without a GPU" in capsys.readouterr().err
    assert not out.exists()


def test_conflict_of_settings_is_not_blamed_on_the_machine(recipe: Path):
    text = refusal(resolve(recipe, ["engine.kind=local", "placement.colocate=true"]), "train", EIGHT)
    assert text.endswith("remove it, or give them GPUs of placement.trainer")
