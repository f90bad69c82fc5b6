"""A pytest plugin of admission: another order of the tests, or only a part of them.

    --hone-order 1      reversed
    --hone-order N      files, the classes of each and the tests of each, shuffled by the seed N
    --hone-part 1/2     every second test, the first included

Gradings never load it.
"""

import random
from typing import Any, Dict, List, Tuple


def pytest_addoption(parser: Any) -> None:
    parser.addoption("--hone-order", type=int, default=0)
    parser.addoption("--hone-part", default="1/1")


def pytest_collection_modifyitems(config: Any, items: List[Any]) -> None:
    part, parts = map(int, config.getoption("--hone-part").split("/"))
    items[:] = ordered(items[part - 1 :: parts], config.getoption("--hone-order"))


def ordered(items: List[Any], order: int) -> List[Any]:
    """Return the tests in an order; those of a file, and of a class in it, stay together."""
    if order == 1:
        return list(reversed(items))
    return shuffled(items, random.Random(order), 1) if order else list(items)


def shuffled(items: List[Any], chance: random.Random, depth: int) -> List[Any]:
    """Return the tests shuffled in groups whose ids have the same first `depth` names."""
    groups: Dict[Tuple[str, ...], List[Any]] = {}
    for item in items:
        groups.setdefault(tuple(item.nodeid.split("[")[0].split("::")[:depth]), []).append(item)
    names = list(groups)
    chance.shuffle(names)
    found: List[Any] = []
    for name in names:
        if len(name) < depth:  # the runs of one function
            chance.shuffle(groups[name])
            found += groups[name]
        else:
            found += shuffled(groups[name], chance, depth + 1)
    return found
