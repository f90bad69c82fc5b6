"""Print names, docstrings and error messages drawn at random from a revision, to judge the language by.

    python scripts/sample_words.py [REVISION] [--seed N] [--count N]

The draw is of the public functions, classes and `raise` statements of hone/, all equally likely. The same
seed and revision give the same sample.
"""

from __future__ import annotations

import argparse
import ast
import random
import subprocess


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], capture_output=True, text=True, check=True).stdout


def items(path: str, source: str) -> list[str]:
    found: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            if not node.name.startswith("_"):
                doc = (ast.get_docstring(node) or "(no docstring)").splitlines()[0]
                found.append(f"{path}:{node.lineno}  {node.name}: {doc}")
        elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
            message = ast.unparse(node.exc.args[0])
            if isinstance(node.exc.args[0], (ast.Constant, ast.JoinedStr)):
                found.append(f"{path}:{node.lineno}  raise {ast.unparse(node.exc.func)}: {message}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("revision", nargs="?", default="HEAD")
    parser.add_argument("--seed", type=int, default=13)
    parser.add_argument("--count", type=int, default=40)
    options = parser.parse_args()
    paths = [
        path
        for path in git("ls-tree", "-r", "--name-only", options.revision, "hone").splitlines()
        if path.endswith(".py")
    ]
    everything = [item for path in paths for item in items(path, git("show", f"{options.revision}:{path}"))]
    for item in random.Random(options.seed).sample(everything, options.count):
        print(item)


if __name__ == "__main__":
    main()
