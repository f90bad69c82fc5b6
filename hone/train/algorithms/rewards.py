"""The one type that algorithms speak."""

import numpy as np
import numpy.typing as npt

Rewards = npt.NDArray[np.float64]  # [n] one per member of a group: rewards in, advantages out
