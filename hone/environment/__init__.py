"""From a task to a ready sandbox: its image, layer and base commit; patches extracted and applied."""

from hone.environment.apply import apply_patch, apply_trusted_patch, base_mounts, extract_patch
from hone.environment.compile import changes_sources, compiled_libraries, put_libraries
from hone.environment.environment import (
    BrokenTree,
    EnvironmentFailed,
    PatchRefused,
    TaskEnvironment,
    resolve_environment,
)
from hone.environment.patch import FilePatch, FilteredPatch, filter_patch, parse_patch
from hone.environment.prepare import built_image, prepare_workspace, sandbox_image, start_agent_sandbox
from hone.environment.result import extract_result, put_files, put_result
from hone.environment.settings import EnvironmentSettings

__all__ = [
    "BrokenTree",
    "EnvironmentFailed",
    "EnvironmentSettings",
    "FilePatch",
    "FilteredPatch",
    "PatchRefused",
    "TaskEnvironment",
    "apply_patch",
    "apply_trusted_patch",
    "base_mounts",
    "built_image",
    "changes_sources",
    "compiled_libraries",
    "extract_patch",
    "extract_result",
    "filter_patch",
    "parse_patch",
    "prepare_workspace",
    "put_files",
    "put_libraries",
    "put_result",
    "resolve_environment",
    "sandbox_image",
    "start_agent_sandbox",
]
