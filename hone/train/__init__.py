"""Training: algorithms, learners and the main loop. `hone.train(...)` trains a recipe."""

from hone.utils.callable_package import make_callable

make_callable(__name__, "hone.front_door.jobs:train")
