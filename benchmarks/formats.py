"""Is anything of a row lost? A thousand rows of each format through import, Hone's file, export and back.

    python benchmarks/formats.py [--rows 1000]

Published rows are taken from ../shared/data where they are, and varied: ids, Unicode, line ends, nulls,
missing columns, lists as lists and inside of text; without them, and for formats that none are kept of, rows
with the data set's columns are made. Every row is imported, saved as Hone's tasks, loaded, exported to JSONL
and to Parquet, read again and compared. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hone.tasks.files import import_rows, read_rows, write_rows
from hone.tasks.formats import FORMATS, save, to_dict
from hone.tasks.rows import Row
from hone.tasks.sources import load_all
from hone.types import Checks, Commit, Environment, Task

PUBLISHED = Path(__file__).parents[2] / "shared" / "data" / "rows"
FILES = {
    "swe-bench": "swe_bench_verified.parquet",
    "swe-gym": "swe_gym.jsonl",
    "swe-rebench": "swe_rebench.jsonl",
    "swe-smith": "swe_smith.jsonl",
    "kodcode": "kodcode_demo.jsonl",
}
SPICE = 'second line\r\nünï \u2028 🐛 "quoted" \\ tab\t'
PLAIN = {
    "instance_id": "owner__name-1",
    "repo": "owner/name",
    "base_commit": "0123456789abcdef0123456789abcdef01234567",
    "patch": "diff --git a/x b/x\n",
    "test_patch": "diff --git a/test_x b/test_x\n",
    "problem_statement": "It is broken.",
    "hints_text": "",
    "created_at": "2024-01-01T00:00:00Z",
    "version": "1.0",
    "FAIL_TO_PASS": ["test_x.py::test_a[1-\u00e4]"],
    "PASS_TO_PASS": [],
}
NEWER = {
    "image": "me/x:1",
    "eval_script": "run\n",
    "log_parser": "parse_log_pytest",
    "eval_type": "fail_only",
}


def swe_rows(name: str) -> Callable[[int], Row]:
    published = (
        [row for row in read_rows(PUBLISHED / FILES[name]) if isinstance(row, dict)] if _there(name) else []
    )
    image = {"image_name": "swebench/swesmith.x86_64.x"} if name == "swe-smith" else {}

    def make(i: int) -> Row:
        row = dict(published[i % len(published)]) if published else {**PLAIN, **image}
        row["instance_id"] = f"{row['instance_id']}-{i}"
        row["problem_statement"] += f"\n{i}: {SPICE}"
        for column in ("FAIL_TO_PASS", "PASS_TO_PASS"):
            tests = row[column] if isinstance(row[column], list) else json.loads(row[column])
            row[column] = tests if i % 2 else json.dumps(tests)
        if i % 3 == 0:
            row["hints_text"] = None
        if i % 5 == 0:
            row.pop("version", None)
        if i % 7 == 0 and name == "swe-bench":
            row |= NEWER
        return row

    return make


def kodcode_rows() -> Callable[[int], Row]:
    published = (
        [row for row in read_rows(PUBLISHED / FILES["kodcode"]) if isinstance(row, dict)]
        if _there("kodcode")
        else []
    )
    made = {
        "question": "Add.",
        "solution": "def add(a, b):\n    return a + b",
        "test": "def test_add():\n    pass",
    }

    def make(i: int) -> Row:
        row = (
            dict(published[i % len(published)])
            if published and i % 3
            else {**made, "question_id": f"Leetcode_{i}_I"}
        )
        column = "instruction" if "instruction" in row else "question"
        row[column] += f" {i}: {SPICE}"
        return row

    return make


def slime_rows() -> Callable[[int], Row]:
    inner = swe_rows("swe-bench")

    def make(i: int) -> Row:
        row = inner(i)
        metadata = {"instance": row, "data_source": ("SWE-Gym", "swe-bench", "elsewhere")[i % 3]}
        text = row["problem_statement"] if i % 4 else f"Repair this: {row['problem_statement']}"
        return {"text": text, "metadata": metadata if i % 5 else json.dumps(metadata), "label": None}

    return make


def request_rows() -> Callable[[int], Row]:
    inner = {
        "princeton-nlp/SWE-bench_Verified": swe_rows("swe-bench"),
        "SWE-Gym/SWE-Gym": swe_rows("swe-gym"),
    }

    def make(i: int) -> Row:
        named = list(inner)[i % 2]
        metadata = {"dataset_name": named, "instance_dict": json.dumps(inner[named](i))}
        return {"responses_create_params": {"input": [], "metadata": metadata}, "agent_ref": {"name": "swe"}}

    return make


def r2e_row(i: int) -> Row:
    commit = f"{i:040x}"
    tests = "FAILED r2e_tests/test_1.py::TestA::test_b - no\nPASSED r2e_tests/test_1.py::test_c\n"
    line = {"content": f"x = {i}  # {SPICE}".split("\r\n")[0], "type": "added"}
    hunk = {
        "descriptor": {
            "old_range": {"start": 1, "length": 0},
            "new_range": {"start": 1, "length": 1},
            "section": "",
        }
    }
    diff = {
        "old_file_content": "",
        "new_file_content": SPICE,
        "header": {"file": {"path": "name/core.py"}, "misc_line": None},
        "minus_file": {"path": "a/name/core.py"},
        "plus_file": {"path": "b/name/core.py"},
        "hunks": [{**hunk, "line_group": {"all_lines": [line]}}],
    }
    run = {
        "repo_name": "sympy",
        "new_commit_hash": commit,
        "test_file_names": ["test_1.py"],
        "old_commit_res_stdout": f"== short test summary info ==\n{tests}",
    }
    return {
        "repo_name": "sympy",
        "docker_image": f"namanjain12/sympy_final:{commit}" if i % 3 else None,
        "commit_hash": commit,
        "parsed_commit_content": json.dumps({"file_diffs": [diff], "old_commit_hash": f"{commit}^"}),
        "execution_result_content": json.dumps(run) if i % 4 else None,
        "modified_files": ["name/core.py", "name/tests/test_core.py"],
        "modified_entity_summaries": [
            {"ast_type_str": "FunctionDef", "name": "f", "start_lineno": i, "type": "function"}
        ],
        "relevant_files": ["name/core.py"],
        "num_non_test_files": 1,
        "num_non_test_lines": i,
        "prompt": f"Write an issue. {SPICE}",
        "problem_statement": f"[ISSUE]\n{i} is wrong: {SPICE}\n[/ISSUE]",
        "expected_output_json": json.dumps(
            {"TestA.test_b": "PASSED", "test_c": "PASSED", "test_d": "FAILED"}
        ),
    }


def debugging_row(i: int) -> Row:
    files = [
        {"content": f"def f():\r\n    return {i}  # ü\n", "path": f"task_{i}_code.py"},
        {
            "content": f"import pytest\nfrom task_{i}_code import f\ndef test_f():\n    assert f() == {i}\n",
            "path": "test.py",
        },
    ]
    extra = {"entrypoint": "python -m pytest --tb=no -s test.py", "files": files, "task_name": f"task_{i}"}
    return {
        "task_id": f"id_{i}" if i % 3 else None,
        "problem_statement": f"{i} is wrong: {SPICE}",
        "prompt": json.dumps([{"role": "user", "content": f"Repair {i}."}]),
        "extra_info": extra if i % 2 else json.dumps(extra),
    }


def own_row(i: int) -> Row:
    checks = Checks(
        fail_to_pass=(f"t.py::test_{i}[ü-\u2028]",),
        pass_to_pass=(),
        test_files={"t.py": SPICE},
        gold_patch=SPICE,
        rule="collected",
        command=("-p", "no:randomly"),
    )
    local = Environment(
        image="repo:/repositories/me__it",
        commit=f"{i:040x}",
        repo="me/it",
        requirements=("attrs==24.1.0",),
        distribution="it==1.0",
        paths=("src", ""),
    )
    made = Environment(image="host", history=(Commit(message="start", files={"a.py": SPICE, "b.py": None}),))
    metadata = {"split": "train", "names": ["f", f"g_{i}"], "nested": {"null": None, "list": [1.5, 2.0]}}
    return to_dict(
        Task(
            id=f"me__it-{i}",
            problem=f"{i}: {SPICE}",
            environment=local if i % 2 else made,
            checks=checks,
            source="mine",
            metadata=metadata,
        )
    )


def _there(name: str) -> bool:
    return (PUBLISHED / FILES[name]).exists()


def shape(value: Any) -> Any:
    """What Parquet keeps apart: columns, the fields of objects, the types of values."""
    if isinstance(value, dict):
        return tuple((name, shape(item)) for name, item in sorted(value.items()))
    if isinstance(value, list):
        return ("list", *{shape(item) for item in value})
    return type(value).__name__


def differences(name: str, rows: list[Row], folder: Path) -> Iterator[str]:
    """A sentence for each row that does not come out as it went in."""
    format = FORMATS[name]
    imported = import_rows(rows, format)
    yield from (str(refusal) for refusal in imported.refused)
    yield from ["a row was taken for a repeated one"] * imported.repeated
    save(imported.tasks, folder / "tasks.jsonl")
    tasks = load_all(folder / "tasks.jsonl")
    if tuple(tasks) != imported.tasks:
        yield "the tasks changed in Hone's file"
    written = [format.write(task) for task in tasks]
    write_rows(written, folder / "rows.jsonl")
    again = list(read_rows(folder / "rows.jsonl"))
    yield from (f"row {i} changed in JSONL" for i, row in enumerate(rows) if again[i] != row)
    groups: dict[Any, list[int]] = defaultdict(list)
    for i, row in enumerate(rows):
        groups[shape(row)].append(i)
    for number, members in enumerate(groups.values()):
        file = folder / f"rows-{number}.parquet"
        write_rows([written[i] for i in members], file)
        back = list(read_rows(file))
        yield from (
            f"row {i} changed in Parquet" for i, row in zip(members, back, strict=True) if row != rows[i]
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=1000, help="of each format")
    count: int = parser.parse_args().rows
    makers: dict[str, Callable[[int], Row]] = {
        "hone": own_row,
        **{name: swe_rows(name) for name in ("swe-bench", "swe-gym", "swe-smith", "swe-rebench")},
        "r2e-gym": r2e_row,
        "slime": slime_rows(),
        "nemo-gym": request_rows(),
        "kodcode": kodcode_rows(),
        "debugging": debugging_row,
    }
    assert set(makers) == FORMATS.keys() - {"harbor"}, "a format has no rows here"  # Harbor's are folders
    metrics: dict[str, float] = {}
    for name, make in makers.items():
        rows = [make(i) for i in range(count)]
        start = time.perf_counter()
        with tempfile.TemporaryDirectory(prefix="hone-formats-") as folder:
            changed = list(differences(name, rows, Path(folder)))
        seconds = time.perf_counter() - start
        origin = "published" if name in FILES and _there(name) else "made"
        print(f"{name:12} {count} rows ({origin}) there and back in {seconds:5.1f} s: {len(changed)} changed")
        print("".join(f"    {sentence}\n" for sentence in changed[:3]), end="")
        metrics[f"{name}_changed"] = len(changed)
        metrics[f"{name}_seconds"] = round(seconds, 2)
    total = sum(value for name, value in metrics.items() if name.endswith("_changed"))
    metrics |= {"formats": len(makers), "rows": count * len(makers), "changed": total}
    print(json.dumps({"name": "formats", "metrics": metrics, "peers": {}, "ratios": {}}))
    raise SystemExit(1 if total else 0)


if __name__ == "__main__":
    main()
