"""Results of generated functions on given arguments."""

from __future__ import annotations

import builtins
import copy
import io
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from types import SimpleNamespace
from typing import Any


class Failed:
    """The result of a call that raised; equal to nothing, since its test cannot pass."""

    def __eq__(self, other: object) -> bool:
        return False

    __hash__ = None  # type: ignore[assignment]


def load(modules: Mapping[str, str], name: str) -> dict[str, Any]:
    """Return the namespace of module `name`; its imports come from `modules` (name -> source)."""

    def import_(wanted: str, *_: object) -> SimpleNamespace:
        return SimpleNamespace(**load(modules, wanted))

    namespace: dict[str, Any] = {"__builtins__": {**vars(builtins), "__import__": import_}, "__name__": name}
    exec(compile(modules[name], f"{name}.py", "exec"), namespace)  # noqa: S102 - the curriculum's own text
    return namespace


def results(
    modules: Mapping[str, str], module: str, function: str, cases: Sequence[tuple[Any, ...]]
) -> list[Any]:
    """Return the result of `module.function` for each case; `Failed()` where it or the import raises."""
    with redirect_stdout(io.StringIO()):
        try:
            called = load(modules, module)[function]
        except Exception:
            return [Failed() for _ in cases]
        return [_result(called, case) for case in cases]


def _result(called: Any, case: tuple[Any, ...]) -> Any:
    try:
        return called(*copy.deepcopy(case))
    except Exception:
        return Failed()
