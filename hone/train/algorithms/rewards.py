"""The array type of rewards and advantages."""

import numpy as np
import numpy.typing as npt

Rewards = npt.NDArray[np.float64]  # [n] one per member of a group: rewards in, advantages out

SAME_REWARD = 1e-8  # rewards closer than this are equal
