"""verl as the trainer: its agent loop gets graded rollouts from Hone."""

VERSION = "0.9.1"  # the tested one
INSTALL = f"pip install verl=={VERSION}, in an environment that also holds Hone"
