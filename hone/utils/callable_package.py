"""Packages of Hone that can be called, where a function of `import hone` has the name of a package.

`hone.train(...)` calls a function, and `hone.train.settings` is a module: one attribute serves both, in any
order of imports.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from types import ModuleType
from typing import Any


class CallablePackage(ModuleType):
    """A package whose call is that of the function at `__function__`, "module:name", imported on use."""

    __function__: str

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _imported(self.__function__)(*args, **kwargs)

    @property
    def __signature__(self) -> inspect.Signature:  # shown by editors and notebooks
        return inspect.signature(_imported(self.__function__))


def make_callable(package: str, function: str) -> None:
    """Let the imported `package` be called as `function`, "module:name"."""
    module = sys.modules[package]
    module.__class__ = CallablePackage
    module.__dict__["__function__"] = function


def _imported(function: str) -> Any:
    module, _, name = function.partition(":")
    return getattr(importlib.import_module(module), name)
