"""Settings of work without a recipe, each as `--set` takes it."""

REPOSITORY_LIMITS = ("sandbox.memory_mib=2048", "sandbox.pids=512", "sandbox.disk_mib=2048")
"""Sandboxes that are large enough for whole repositories."""

NO_RECIPE = (*REPOSITORY_LIMITS, *(f"tasks.{name}=0" for name in ("train", "test", "unseen")))
"""Of an evaluation: no tasks but those that it names."""
