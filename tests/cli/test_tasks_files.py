"""`hone tasks import` and `export` as a user meets them, for every format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hone.tasks.files import read_rows, write_rows
from hone.tasks.published import instance_list
from tests.cli.in_process import Hone
from tests.tasks.test_formats_rows import KODCODE, ROWS, SWE


def some_rows(number: int) -> list[dict[str, Any]]:
    repos = ("pallets/flask", "sympy/sympy")
    return [
        {**SWE, "instance_id": f"t__t-{i}", "repo": repos[i % 2], "image": f"me/x:{i}"} for i in range(number)
    ]


def ids(file: Path) -> list[str]:
    return [json.loads(line)["id"] for line in file.read_text().splitlines()]


@pytest.mark.parametrize("ending", [".jsonl", pytest.param(".parquet", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", list(ROWS))
def test_rows_of_every_format_round_trip(hone: Hone, tmp_path: Path, name: str, ending: str) -> None:
    row = {**SWE, "image_name": "me/x"} if name == "swe-smith" else ROWS[name]
    if ending == ".parquet":
        row = json.loads(json.dumps(row).replace("{}", "null"))  # Parquet has no empty objects
        if name == "hone":
            row = {**row, "metadata": {"split": "train"}}
    rows, tasks, out = tmp_path / f"rows{ending}", tmp_path / "tasks.jsonl", tmp_path / f"out{ending}"
    write_rows([row], rows)
    assert hone("tasks", "import", rows, "--format", name, "-o", tasks)[0] == 0
    assert hone("tasks", "export", tasks, "--format", name, "-o", out)[:2] == (0, f"{out}: 1 rows.\n")
    assert list(read_rows(out)) == [row]


@pytest.mark.slow
@pytest.mark.parametrize("name", list(ROWS))
def test_one_command_writes_prompts_ids_and_images(hone: Hone, tmp_path: Path, name: str) -> None:
    row = {**SWE, "image_name": "me/x"} if name == "swe-smith" else ROWS[name]
    rows, tasks, out, lists = (
        tmp_path / part for part in ("rows.jsonl", "tasks.jsonl", "eval.jsonl", "lists")
    )
    write_rows([row], rows)
    assert hone("tasks", "import", rows, "--format", name, "-o", tasks)[0] == 0
    assert hone("tasks", "export", tasks, "--format", "slime", "-o", out, "--lists", lists)[0] == 0
    (prompt,) = read_rows(out)
    assert isinstance(prompt, dict)
    assert set(prompt) - {"label"} == {"text", "metadata"}
    instance = prompt["metadata"]["instance"]
    assert instance == (row["metadata"]["instance"] if name == "slime" else row)
    assert (lists / "instance_ids.txt").read_text().splitlines() == ids(tasks)
    pulled = name not in ("hone", "kodcode", "debugging")
    assert len((lists / "docker_images.txt").read_text().splitlines()) == pulled


def test_an_id_list_chooses_from_a_data_set(hone: Hone, tmp_path: Path) -> None:
    rows, tasks, listed = tmp_path / "rows.jsonl", tmp_path / "tasks.jsonl", tmp_path / "ids.txt"
    write_rows(some_rows(6), rows)
    listed.write_text("# mine\nt__t-4\nt__t-1\n")
    begin = ("tasks", "import", rows, "--format", "swe-bench", "-o", tasks)
    code, said, _ = hone(*begin, "--ids", listed)
    assert (code, said) == (0, f"{tasks}: 2 tasks; 0 rows refused, 0 repeated, 4 not selected.\n")
    assert ids(tasks) == ["t__t-1", "t__t-4"]
    tasks.unlink()
    listed.write_text("t__t-1\nt__t-44\n")
    code, _, said = hone(*begin, "--ids", listed)
    assert (code, said) == (1, f"hone: there is no task for {listed}: t__t-44 (did you mean t__t-4?)\n")
    assert not tasks.exists()


def test_repository_limit_and_seed_choose_too(hone: Hone, tmp_path: Path) -> None:
    rows, tasks = tmp_path / "rows.jsonl", tmp_path / "tasks.jsonl"
    write_rows(some_rows(20), rows)
    begin = ("tasks", "import", rows, "--format", "swe-bench", "-o", tasks)
    code, out, _ = hone(*begin, "--repo", "sympy/sympy", "--limit", "3", "--json")
    assert (code, json.loads(out)["left_out"]) == (0, 17)
    assert ids(tasks) == ["t__t-1", "t__t-3", "t__t-5"]
    hone(*begin, "--repo", "sympy/sympy", "--repo", "pallets/flask", "--seed", "7")
    first = ids(tasks)
    assert first != sorted(first)
    hone(*begin, "--seed", "7")
    assert ids(tasks) == first


def test_a_folder_of_shards_is_imported_by_set(hone: Hone, tmp_path: Path) -> None:
    rows, tasks = some_rows(4), tmp_path / "tasks.jsonl"
    for i in range(2):
        write_rows(rows[2 * i : 2 * i + 2], tmp_path / "set" / "data" / f"test-{i:05}-of-00002.parquet")
    write_rows(rows[:1], tmp_path / "set" / "data" / "dev-00000-of-00001.parquet")
    begin = ("tasks", "import", tmp_path / "set", "--format", "swe-bench", "-o", tasks)
    code, _, said = hone(*begin)
    assert (code, said) == (
        1,
        f"hone: {tmp_path / 'set'} holds several sets (dev, test): take one with "
        "`hone tasks import --split`, or give its file\n",
    )
    assert hone(*begin, "--split", "test")[0] == 0
    assert ids(tasks) == [f"t__t-{i}" for i in range(4)]


def test_first_rejections_are_printed_and_all_are_in_json(hone: Hone, tmp_path: Path) -> None:
    rows, tasks = tmp_path / "rows.jsonl", tmp_path / "tasks.jsonl"
    write_rows([*some_rows(1), *({"instance_id": f"i{i}"} for i in range(30))], rows)
    begin = ("tasks", "import", rows, "--format", "swe-bench", "-o", tasks)
    code, said, warned = hone(*begin)
    assert (code, said) == (0, f"{tasks}: 1 tasks; 30 rows refused, 0 repeated.\n")
    assert warned.count("\n") == 21
    assert warned.endswith("and 10 more; all with --json\n")
    assert len(json.loads(hone(*begin, "--json")[1])["refused"]) == 30


@pytest.mark.parametrize("content", [b"", b"PAR1", b"\x00\xff" * 100])
@pytest.mark.parametrize(
    "name", ["x.jsonl", "x.json", "x.parquet", "x.jsonl.gz", "x.json.gz", "absent.jsonl"]
)
def test_empty_file_gives_one_sentence(hone: Hone, tmp_path: Path, name: str, content: bytes) -> None:
    if not name.startswith("absent"):
        (tmp_path / name).write_bytes(content)
    out = tmp_path / "tasks.jsonl"
    code, said, warned = hone("tasks", "import", tmp_path / name, "--format", "swe-bench", "-o", out)
    assert code == 1
    assert not out.exists()
    assert "unexpected error" not in warned
    assert name in said + warned


DJANGO = {**SWE, "instance_id": "django__django-7530", "repo": "django/django", "image": "me/x:7530"}


def test_report_says_of_each_row_whether_it_can_be_graded(hone: Hone, tmp_path: Path) -> None:
    rows, tasks = tmp_path / "rows.jsonl", tmp_path / "tasks.jsonl"
    del (unscripted := dict(DJANGO))["install_config"]
    write_rows([*some_rows(2), unscripted, {"instance_id": "x"}, KODCODE], rows)
    code, out, _ = hone("tasks", "import", rows, "--report", "--json", "-o", tasks)
    found = json.loads(out)
    assert code == 0
    assert found["gradeability"] == {"gradeable": 1, "needs_image": 2, "needs_extra": 0, "refused": 2}
    by_row = {each["row"]: each for each in found["rows"]}
    assert sorted(by_row) == [1, 2, 3, 4, 5]
    assert "do not run with pytest" in by_row[3]["reason"]
    assert "match no known data set" in by_row[4]["reason"]
    assert ids(tasks) == ["t__t-0", "t__t-1", "Leetcode_1_I"]
    assert found["statistics"]["tasks"] == 3
    code, said, _ = hone("tasks", "import", rows, "--report")
    assert code == 0
    assert "do not run with pytest" in said
    assert "swe-bench-verified" in said


def test_published_instance_list_chooses_by_its_name(hone: Hone, tmp_path: Path) -> None:
    rows, tasks = tmp_path / "rows.jsonl", tmp_path / "tasks.jsonl"
    listed = instance_list("django-train-201")
    write_rows([{**DJANGO, "instance_id": name, "image": f"me/{name}"} for name in [*listed, "o__n-1"]], rows)
    code, said, _ = hone("tasks", "import", rows, "--instance-ids", "django-train-201", "-o", tasks)
    assert (code, said.count("201 tasks")) == (0, 1)
    assert ids(tasks) == listed


def test_time_limit_of_imported_tasks_can_be_set(hone: Hone, tmp_path: Path) -> None:
    rows, tasks = tmp_path / "rows.jsonl", tmp_path / "tasks.jsonl"
    write_rows(some_rows(1), rows)
    assert hone("tasks", "import", rows, "--timeout-s", "90", "-o", tasks)[0] == 0
    assert json.loads(tasks.read_text())["checks"]["timeout_s"] == 90


def test_import_without_a_file_to_write_needs_a_report(hone: Hone, tmp_path: Path) -> None:
    code, _, said = hone("tasks", "import", tmp_path / "rows.jsonl")
    assert code == 2
    assert "--report" in said
