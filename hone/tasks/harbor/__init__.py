"""Harbor tasks: folders of a configuration, an instruction, an environment, a verifier and a solution."""

from hone.tasks.harbor.config import TaskConfig, parse_config
from hone.tasks.harbor.folder import read_folder, write_folder
from hone.tasks.harbor.serve import HarborTask, Stage, read_task

__all__ = ["HarborTask", "Stage", "TaskConfig", "parse_config", "read_folder", "read_task", "write_folder"]
