"""Settings of simulations: how long the parts of a rollout and of a training step take."""

from __future__ import annotations

from pydantic import Field

from hone.settings import Settings


class SimulateSettings(Settings):
    """Durations for `hone plan --simulate`, where no run was measured. Each duration is lognormal: its
    median, and its 99th percentile as a multiple of the median."""

    steps: int | None = Field(default=None, ge=1)
    """Training steps that are measured, after those that fill the window. Default: those of 1,000 rollouts,
    at least 6, and at least as many as fill the window twice."""

    tasks: int = Field(default=1000, ge=1)
    """Number of training tasks."""

    start_s: float = Field(default=2.0, ge=0)
    """Median seconds to start a sandbox."""

    turns: float = Field(default=20.0, ge=1)
    """Median number of turns of a rollout; `agent.turn_limit` bounds it."""

    turns_ratio: float = Field(default=5.0, ge=1)
    """99th percentile of the number of turns, as a multiple of the median."""

    task_share: float = Field(default=0.5, ge=0, le=1)
    """Share of the variance of the turns' logarithm that is between tasks: 1: all rollouts of a task have the
    same number of turns; 0: no task is longer than another."""

    reply_s: float = Field(default=6.0, ge=0)
    """Median seconds that an engine takes for a reply: alone, if `reply_slowdown` is above 0, and else at the
    load of `replies`."""

    reply_ratio: float = Field(default=8.0, ge=1)
    """99th percentile of the seconds of a reply, as a multiple of the median."""

    reply_slowdown: float = Field(default=0.0, ge=0, le=1)
    """With n replies in its server's batch, a reply takes 1 + reply_slowdown x (n - 1) times its seconds
    alone. 1: the replies share the server's time; 0: a reply takes no longer beside others."""

    replies: int | None = Field(default=None, ge=1)
    """Replies that a server samples at a time; more wait. Default: `engine.max_batch`, and 32 for servers at
    `engine.urls`."""

    command_s: float = Field(default=1.0, ge=0)
    """Median seconds of a command in the sandbox."""

    command_ratio: float = Field(default=20.0, ge=1)
    """99th percentile of the seconds of a command, as a multiple of the median."""

    grade_s: float = Field(default=20.0, ge=0)
    """Median seconds of grading a patch, in a sandbox of its own."""

    grade_ratio: float = Field(default=5.0, ge=1)
    """99th percentile of the seconds of grading, as a multiple of the median."""

    train_s: float | None = Field(default=None, ge=0)
    """Seconds that the trainer works on a step. Default: the estimate of `hone plan`, 60 without a GPU."""

    publish_s: float = Field(default=15.0, ge=0)
    """Seconds of a weight update, during which the engine samples nothing."""

    resolve_rate: float = Field(default=0.5, ge=0, le=1)
    """Share of the rollouts that resolve their task; each task has its own rate around it."""

    fault_share: float = Field(default=0.0, ge=0, le=1)
    """Share of the attempts at a rollout that end in an infrastructure fault."""

    broken_tasks: float = Field(default=0.0, ge=0, le=1)
    """Share of the tasks whose every rollout ends in an infrastructure fault."""

    death_every_s: float | None = Field(default=None, gt=0)
    """Seconds after which one engine server dies, again and again; default: none does."""

    restart_s: float = Field(default=120.0, ge=0)
    """Seconds until a dead server serves again."""
