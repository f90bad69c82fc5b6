"""The charts of a training: which metrics share one, their names in words, units and how to read them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hone.view.records import Panel, Point, Series


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chart:
    title: str
    note: str
    unit: str
    names: Mapping[str, str]  # metric -> its name in words


CHARTS = (
    _Chart(
        title="Mismatch KL",
        note="Divergence of the engine's from the trainer's log-probabilities on fresh tokens; it stays near "
        "0 unless the two compute different policies.",
        unit="nats",
        names={"mismatch/k3": "KL(engine, trainer), k3", "mismatch/k1": "KL(engine, trainer), k1"},
    ),
    _Chart(
        title="Largest log-probability gap",
        note="Largest difference between engine and trainer on one token; single tokens may differ in low "
        "precision, but a jump points to other weights or another chat template.",
        unit="nats",
        names={"logp_gap_max": "largest |engine - trainer|"},
    ),
    _Chart(
        title="Entropy",
        note="Mean entropy of the policy at its sampled tokens; at 0 it no longer explores.",
        unit="nats",
        names={"entropy": "entropy"},
    ),
    _Chart(
        title="Loss",
        note="Mean loss of the mini-batches; its level says little about the policy, a jump is a warning.",
        unit="",
        names={"loss": "loss", "value/loss": "loss of the critic"},
    ),
    _Chart(
        title="Gradient norm",
        note="Mean norm before clipping; spikes come before a training that diverges.",
        unit="",
        names={"grad_norm": "gradient norm"},
    ),
    _Chart(
        title="Learning rate",
        note="Mean over the optimiser steps of a step.",
        unit="",
        names={"lr": "learning rate"},
    ),
    _Chart(
        title="Distance from the sampling policy",
        note="How far the updates of one step move the policy; above a few percent of clipped tokens, the "
        "steps are large.",
        unit="",
        names={
            "approx_kl": "KL(old, new), k3, nats",
            "clip_fraction": "share of clipped tokens",
            "ratio_mean_deviation": "mean |ratio - 1|",
        },
    ),
    _Chart(
        title="Staleness",
        note="Steps between the weights that began a rollout and the step that trained on it.",
        unit="steps",
        names={"staleness/mean": "mean", "staleness/max": "largest"},
    ),
    _Chart(
        title="Turns",
        note="Mean turns of a rollout; a rise up to the limit means that rollouts are cut off.",
        unit="turns",
        names={"turns": "turns per rollout"},
    ),
    _Chart(
        title="Trained tokens",
        note="Tokens with a gradient in all passes of a step.",
        unit="tokens",
        names={"trained_tokens": "trained tokens", "unique_tokens": "computed tokens"},
    ),
    _Chart(
        title="Groups without a signal",
        note="Groups whose rewards are all equal train nothing; with many of them, the tasks are too easy or "
        "too hard.",
        unit="groups",
        names={"zero_variance_groups": "without a signal", "groups": "all"},
    ),
    _Chart(
        title="Busy",
        note="Share of the time in which each part worked; the busiest one is what the run waits for.",
        unit="%",
        names={"busy/engine": "engine", "busy/sandbox": "sandbox", "busy/trainer": "trainer"},
    ),
    _Chart(
        title="Seconds of a step",
        note="A step waits for its batch, then trains; a long wait means that rollouts are the bottleneck.",
        unit="s",
        names={"wait_s": "waited for the batch", "seconds": "trained"},
    ),
    _Chart(
        title="Trainer speed",
        note="Tokens of all branches per second of training.",
        unit="tokens/s",
        names={"tokens_per_s": "tokens per second"},
    ),
    _Chart(
        title="Trainer memory",
        note="Largest memory of one device so far: allocated on a GPU, resident on a CPU.",
        unit="GiB",
        names={"peak_memory_gib": "peak memory"},
    ),
    _Chart(
        title="Model FLOP/s utilisation",
        note="Share of the GPUs' peak that the model's operations used.",
        unit="%",
        names={"mfu": "utilisation"},
    ),
    _Chart(
        title="Judge",
        note="Mean score of the judged turns, and the share of votes that could not be read.",
        unit="",
        names={
            "judge/score": "score",
            "judge/invalid_share": "invalid votes",
            "judge/failed_share": "failed",
        },
    ),
    _Chart(
        title="Progress of the hidden tests",
        note="Share of the hidden tests that turns gained and lost, per rollout.",
        unit="",
        names={"progress/gained": "gained", "progress/lost": "lost"},
    ),
    _Chart(
        title="Corrections",
        note="Share of the tokens whose importance weight was cut or masked, because another policy sampled "
        "them.",
        unit="%",
        names={"corrections/truncated": "truncated", "corrections/masked": "masked"},
    ),
    _Chart(
        title="Distillation",
        note="Mean divergence from the teacher on the trained tokens.",
        unit="nats",
        names={"distill/kl": "KL(policy, teacher)"},
    ),
)
STAGE = "stage_s/"


def panels(metrics: Sequence[Mapping[str, Any]]) -> tuple[Panel, ...]:
    """Return a panel of every chart of which the run has a metric."""
    stages = sorted({name for record in metrics for name in record if name.startswith(STAGE)})
    of_stages = _Chart(
        title="Seconds of a rollout's stages",
        note="Mean seconds of each stage: `model` and `exec` are parts of `agent`.",
        unit="s",
        names={name: name.removeprefix(STAGE) for name in stages},
    )
    made = [_panel(chart, metrics) for chart in (*CHARTS, of_stages)]
    return tuple(panel for panel in made if panel is not None)


def _panel(chart: _Chart, metrics: Sequence[Mapping[str, Any]]) -> Panel | None:
    series = [
        Series(name=name, title=title, unit=chart.unit, points=points)
        for name, title in chart.names.items()
        if (points := points_of(metrics, name))
    ]
    return Panel(title=chart.title, note=chart.note, series=tuple(series)) if series else None


def points_of(metrics: Sequence[Mapping[str, Any]], name: str) -> tuple[Point, ...]:
    """Return the points of one metric, without steps at which it has no finite value."""
    return tuple(
        Point(step=record["step"], value=value)
        for record in metrics
        if isinstance(value := record.get(name), (int, float)) and math.isfinite(value)
    )
