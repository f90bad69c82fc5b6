"""slime as the trainer: its rollout hooks get tasks and graded rollouts from Hone."""

VERSION = "0.3.1"  # the tested one
COMMIT = "624b824a8"  # of slime's repository; it is used from a checkout
