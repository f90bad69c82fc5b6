"""Harbor tasks: folders of a configuration, an instruction, an environment, a verifier and a solution."""

from hone.tasks.harbor.folder import read_folder, write_folder
from hone.tasks.harbor.serve import PARSER, HarborTask, Stage, is_harbor, read_task, solution_commands

__all__ = [
    "PARSER",
    "HarborTask",
    "Stage",
    "is_harbor",
    "read_folder",
    "read_task",
    "solution_commands",
    "write_folder",
]
