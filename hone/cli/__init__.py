"""The `hone` command. Importing it is quick: each command loads what it needs when it runs."""

from hone.cli.app import main

__all__ = ["main"]
