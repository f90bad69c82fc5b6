import random

from hone.curate.mutation.candidates import Module
from hone.curate.mutation.schedule import Schedule, ordered

ONE = """def f(a, b):
    if a < b and a:
        return a + 1
    return max(a, b)


def g(a):
    return a - 1 < 2
"""
TWO = "def h(a, b=1):\n    return f(a, b) + g(b) * 2\n"
MODULES = {"one.py": Module("one.py", ONE), "two.py": Module("two.py", TWO)}
SINGLES = [m for module in MODULES.values() for m in module.mutations()]


def schedule(seed=0):
    return Schedule(MODULES, SINGLES, random.Random(seed))


def drain(schedule, size=4):
    """Every candidate, of which each single is detected by the tests of its function."""
    batches = []
    while batch := schedule.batch(size):
        batches.append(batch)
        for candidate in batch:
            schedule.count_task(candidate.kind)
            if candidate.kind == "single":
                schedule.add_detected(candidate.mutations[0], ["shared", candidate.mutations[0].function])
        if len(batches) > 60:
            break
    return [candidate for batch in batches for candidate in batch]


def test_operators_and_functions_are_interleaved():
    names = [mutation.operator for mutation in ordered(SINGLES, random.Random(1))]
    kinds = len(set(names))
    assert len(set(names[:kinds])) == kinds
    arithmetic = [m.function for m in ordered(SINGLES, random.Random(1)) if m.operator == "arithmetic"]
    assert set(arithmetic[:3]) == {"f", "g", "h"}


def test_seed_decides_the_order():
    first, again, other = (
        [candidate.key for candidate in drain(schedule(seed))] for seed in ("one", "one", "two")
    )
    assert first == again != other


def test_no_candidate_is_repeated_and_combinations_use_detected_bugs():
    candidates = drain(schedule())
    assert len({candidate.key for candidate in candidates}) == len(candidates)
    kinds = [candidate.kind for candidate in candidates]
    assert {"single", "compound", "cross-file"} == set(kinds)
    assert set(kinds[:4]) == {"single"}
    for candidate in candidates:
        paths = {mutation.path for mutation in candidate.mutations}
        assert len(paths) == (2 if candidate.kind == "cross-file" else 1)
