"""Decide, in the runner's parent process, which test may be reported by which name.

Data sets name the tests of unittest by what its runner prints: `test_x (package.module.Class)`, or the first
line of the docstring. The test process tells these titles, and code under test could change a docstring or a
class's name, so that a test that passes answers for one that fails. The text of the tests tells whose they
are.
"""

import ast
import os
import re

TITLE = re.compile(r"(\w+) \(([\w.]+)\)")


class Titles:
    """The titles that the trusted texts of one run give their tests.

    Args:
        sources: path -> text.
    """

    def __init__(self, workdir: str, sources: "dict[str, bytes]") -> None:
        self.workdir, self.sources = workdir, sources
        self.files = {os.path.relpath(path, workdir): path for path in sources}
        self.modules: dict[str, list[str]] = {}  # last name of a module -> the files of such modules
        for file in self.files:
            self.modules.setdefault(dotted(file).rpartition(".")[2], []).append(file)
        self.docs: dict[str, dict[str, set[str]]] = {}  # file -> function -> first lines of docstrings

    def may_be_named(self, test: str, title: str) -> bool:
        """Return whether a test may have a title: unittest's for its class, and a line of its docstring."""
        name, joined, line = title.partition("\n")
        file, function = test.split("::")[0], test.rpartition("::")[2].partition("[")[0]
        found = TITLE.fullmatch(name)
        if found is not None:
            owners = self.owners(found.group(2))
            if (owners and file not in owners) or (owners and found.group(1) != function):
                return False
        return not joined or self.may_have_line(file, function, line)

    def owners(self, name: str) -> "list[str]":
        """Return the files whose module is a beginning of a dotted name, from any folder."""
        parts = name.split(".")
        found = []
        for end in range(1, len(parts)):
            module = ".".join(parts[:end])
            for file in self.modules.get(parts[end - 1], ()):
                if dotted(file) == module or dotted(file).endswith("." + module):
                    found.append(file)
        return found

    def may_have_line(self, file: str, function: str, line: str) -> bool:
        """Return whether a line is of the function's docstring, or in no trusted text."""
        texts = [each for each in self.files if line.encode() in self.sources[self.files[each]]]
        for each in [file, *texts] if texts and file in self.files else ():
            for name, lines in self.docs_of(each).items():
                if line in lines and function.startswith(name):
                    return True
        return not texts

    def docs_of(self, file: str) -> "dict[str, set[str]]":
        if file not in self.docs:
            found: dict[str, set[str]] = {}
            try:
                nodes = list(ast.walk(ast.parse(self.sources[self.files[file]])))
            except (KeyError, SyntaxError, ValueError):
                nodes = []
            for node in nodes:
                if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    text = ast.get_docstring(node) or ""
                    found.setdefault(node.name, set()).add(text.strip().split("\n")[0].strip())
            self.docs[file] = found
        return self.docs[file]


def dotted(file: str) -> str:
    """Return the name of a file's module from the root.

    >>> dotted("a/b/__init__.py"), dotted("a/c.py")
    ('a.b', 'a.c')
    """
    name = file[: -len(".py")] if file.endswith(".py") else file
    return re.sub(r"/__init__$", "", name).replace("/", ".")
