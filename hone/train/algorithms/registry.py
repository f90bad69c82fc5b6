"""Every algorithm by its name; a new one is a file of this folder and an entry here."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from hone.train.algorithms.cispo import CispoSettings
from hone.train.algorithms.custom import CustomSettings
from hone.train.algorithms.dapo import DapoSettings
from hone.train.algorithms.dr_grpo import DrGrpoSettings
from hone.train.algorithms.grpo import GrpoSettings
from hone.train.algorithms.gspo import GspoSettings
from hone.train.algorithms.opo import OpoSettings
from hone.train.algorithms.ppo import PpoSettings
from hone.train.algorithms.reinforce_pp import ReinforcePPSettings
from hone.train.algorithms.rloo import RlooSettings
from hone.train.algorithms.step_wise import StepWiseSettings

AnyAlgorithmSettings = Annotated[
    GrpoSettings
    | DrGrpoSettings
    | RlooSettings
    | ReinforcePPSettings
    | DapoSettings
    | GspoSettings
    | CispoSettings
    | StepWiseSettings
    | OpoSettings
    | PpoSettings
    | CustomSettings,
    Field(discriminator="name"),
]
