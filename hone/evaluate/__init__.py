"""Evaluation of a fixed policy: runner, results, statistics. `hone.evaluate(...)` evaluates an agent."""

from hone.utils.callable_package import make_callable

make_callable(__name__, "hone.front_door.jobs:evaluate")
