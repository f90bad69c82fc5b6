"""The conversation of a rollout, message by message, with what came of each reply."""

from __future__ import annotations

from hone.rollout.trajectory_files import turn_starts
from hone.types import Call, Judgement, JudgementStatus, Trajectory, Turn, TurnProgress
from hone.view.conversation import conversation
from hone.view.records import Lane, TurnView

BEFORE = ("start",)  # stages before the agent begins, in order
AFTER = ("patch", "close", "grade")  # and after it has ended


def turn_views(trajectory: Trajectory) -> tuple[TurnView, ...]:
    """Return the messages; a reply holds its turn where there is one reply per turn.

    Otherwise the turns follow the messages, each with the role "turn".
    """
    shown, begins = conversation(trajectory), _begins(trajectory)
    views: list[TurnView] = []
    matched = any(message.turn is not None for message in shown)
    last: Turn | None = None
    for message in shown:
        if message.turn is not None:
            last = message.turn
            text, reasoning = message.text, message.reasoning
            views.append(_reply(trajectory, message.turn, begins, text, reasoning, message.calls))
        else:
            answers = None if last is None or message.role == "assistant" else last.index
            views.append(
                TurnView(
                    role=message.role,
                    text=message.text,
                    reasoning=message.reasoning,
                    calls=message.calls,
                    answers=answers,
                )
            )
    if not matched:
        views += [_reply(trajectory, turn, begins, turn.reply, role="turn") for turn in trajectory.turns]
    return tuple(views)


def _reply(
    trajectory: Trajectory,
    turn: Turn,
    begins: dict[int, float],
    text: str,
    reasoning: str = "",
    calls: tuple[str, ...] = (),
    *,
    role: str = "assistant",
) -> TurnView:
    scores, index = trajectory.scores, turn.index
    judgements = {j.step_index: j for j in scores.judgements or ()}
    steps = {step.step_index: step for step in (scores.progress.steps if scores.progress else ())}
    return TurnView(
        role=role,
        text=text,
        reasoning=reasoning,
        calls=calls,
        index=index,
        reply=turn.reply,
        action=turn.action,
        exit_code=turn.exit_code,
        observation=turn.observation,
        begins=begins.get(index),
        seconds=turn.seconds,
        tokens=None if turn.node is None else len(trajectory.tree.nodes[turn.node].tokens),
        node=turn.node,
        judgement=judgements.get(index),
        progress=steps.get(index),
        reward=trajectory.turn_rewards.get(index),
        signals=tuple(f"{s.kind}: {s.command}" for s in trajectory.signals if s.turn == index),
    )


def _begins(trajectory: Trajectory) -> dict[int, float]:
    """Return turn index -> seconds after the rollout's begin."""
    before = sum(trajectory.timings.get(stage, 0.0) for stage in BEFORE) - (trajectory.started_at or 0.0)
    starts = turn_starts(trajectory)
    return {turn.index: start + before for turn, start in zip(trajectory.turns, starts, strict=True)}


def lanes(trajectory: Trajectory) -> tuple[Lane, ...]:
    """Return the stretches of a rollout's time: start, each turn's reply and command, patch, close, grade."""
    made: list[Lane] = []
    now = 0.0
    for stage in BEFORE:
        if seconds := trajectory.timings.get(stage, 0.0):
            made.append(Lane(name=stage, begins=now, seconds=seconds))
            now += seconds
    agent_ends = now + trajectory.timings.get("agent", sum(turn.seconds for turn in trajectory.turns))
    waited = _model_seconds(trajectory)
    for turn in trajectory.turns:
        model = min(waited.get(turn.index, 0.0), turn.seconds)
        if model:
            made.append(Lane(name="model", begins=now, seconds=model, turn=turn.index))
        if turn.seconds > model:
            name = "exec" if waited else "agent"
            made.append(Lane(name=name, begins=now + model, seconds=turn.seconds - model, turn=turn.index))
        now += turn.seconds
    now = max(now, agent_ends)
    for stage in AFTER:
        if seconds := trajectory.timings.get(stage, 0.0):
            made.append(Lane(name=stage, begins=now, seconds=seconds))
            now += seconds
    return tuple(made)


def _model_seconds(trajectory: Trajectory) -> dict[int, float]:
    """Return turn index -> seconds that its call to the policy took, where that is known."""
    by_node = {call.node: call for call in trajectory.calls if call.node is not None}
    if any(turn.node in by_node for turn in trajectory.turns if turn.node is not None):
        return {t.index: by_node[t.node].seconds for t in trajectory.turns if t.node in by_node}
    main: list[Call] = [call for call in trajectory.calls if call.purpose == "main"]
    if len(main) != len(trajectory.turns):
        return {}
    return {turn.index: call.seconds for turn, call in zip(trajectory.turns, main, strict=True)}


def turn_scores(trajectory: Trajectory) -> dict[int, str]:
    """Return turn index -> judge score, progress of the hidden tests and turn reward; only scored turns.

    Example: "judge +0.33 (3 of 3 votes)  progress 0.50  reward +0.83".
    """
    scores = trajectory.scores
    words: dict[int, list[str]] = {}
    for judgement in scores.judgements or ():
        words.setdefault(judgement.step_index, []).append(_judgement_text(judgement))
    for step in scores.progress.steps if scores.progress else ():
        words.setdefault(step.step_index, []).append(_progress_text(step))
    for index, reward in trajectory.turn_rewards.items():
        words.setdefault(index, []).append(f"reward {reward:+.2f}")
    return {index: "  ".join(texts) for index, texts in sorted(words.items())}


def score_text(view: TurnView) -> str:
    """Return what `turn_scores` says, of one turn of a page; "" without scores."""
    parts = [
        "" if view.judgement is None else _judgement_text(view.judgement),
        "" if view.progress is None else _progress_text(view.progress),
        "" if view.reward is None else f"reward {view.reward:+.2f}",
    ]
    return "  ".join(part for part in parts if part)


def _judgement_text(judgement: Judgement) -> str:
    votes = f"{len(judgement.valid_scores)} of {len(judgement.votes)} votes"
    if judgement.status is not JudgementStatus.OK:
        return f"judge {judgement.status} ({votes})"
    return f"judge {judgement.score:+.2f} ({votes})"


def _progress_text(step: TurnProgress) -> str:
    return f"progress {step.status}" if step.score is None else f"progress {step.score:.2f}"
