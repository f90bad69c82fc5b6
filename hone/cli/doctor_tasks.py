"""`hone tasks doctor`"""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hone.cli.errors import FAILED
from hone.cli.options import JsonOption

if TYPE_CHECKING:
    from hone.grading.doctor import Diagnosis
    from hone.tasks.files import Refusal

_SHOWN = 30  # reasons and missing things printed; --json has all


def doctor(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="Tasks, or rows of a data set that Hone recognises by its columns."
        ),
    ],
    repositories: Annotated[
        Path | None,
        typer.Option(
            "--repositories",
            "--repo-root",
            metavar="DIR",
            help="Git folders, bare repositories or bundles named owner__name, used in place of images.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Say for each row whether it can be graded on this machine, and what would make it so. Starts nothing.

    A row is graded natively, in its repository below DIR with the Python and the requirements of its data
    set's specification, or in its image. Exit code 1 if a row can be graded in neither.

    [bold]Example[/bold]: hone tasks doctor verified.parquet --repositories repos
    """
    import asyncio

    from hone.cli.output import print_json
    from hone.grading.doctor import diagnose
    from hone.tasks.files import import_rows, read_source

    imported = import_rows(read_source(str(source), None))
    found = diagnose(
        imported.tasks, imported.numbers, repositories=repositories, images=asyncio.run(_stored_images())
    )
    if as_json:
        print_json(_as_json(found, imported.refused))
    else:
        _print(found, imported.refused)
    return FAILED if imported.refused or any(_place(each) is None for each in found) else 0


async def _stored_images() -> list[str]:
    from hone.sandbox.images import ImageStore
    from hone.sandbox.settings import SandboxSettings
    from hone.utils.files import default_cache_dir

    settings = SandboxSettings()
    folder = (settings.cache_dir or default_cache_dir()) / "images"
    if not folder.is_dir():
        return []
    return [image.name for image in await ImageStore(folder, budget_gib=settings.images_gib).list()]


def _place(each: Diagnosis) -> str | None:
    """Return where a row can be graded now: "natively", "in an image", or None."""
    from hone.tasks.gradeability import Gradeability

    if each.natively.status is Gradeability.GRADEABLE:
        return "natively"
    return "in an image" if each.in_image.status is Gradeability.GRADEABLE else None


def _counts(found: list[Diagnosis], refused: tuple[Refusal, ...]) -> dict[str, int]:
    counts = Counter(_place(each) or each.status.value for each in found)
    counts["refused"] += len(refused)
    return {
        name: counts[name] for name in ("natively", "in an image", "needs_image", "needs_extra", "refused")
    }


def _as_json(found: list[Diagnosis], refused: tuple[Refusal, ...]) -> dict[str, Any]:
    rows: list[dict[str, Any]] = [
        {
            "row": each.row,
            "id": each.id,
            "repo": each.repo,
            "status": each.status,
            "place": _place(each),
            "reason": each.reason,
            "natively": dataclasses.asdict(each.natively),
            "in_image": dataclasses.asdict(each.in_image),
            "needs": [dataclasses.asdict(need) for need in each.needs],
        }
        for each in found
    ]
    rows += [
        {
            "row": each.row,
            "id": each.id,
            "status": "refused",
            "place": None,
            "reason": each.reason,
            "needs": [],
        }
        for each in refused
    ]
    return {
        "rows": sorted(rows, key=lambda row: row["row"]),
        "counts": _counts(found, refused),
        "by_repository": _by_repository(found),
    }


def _by_repository(found: list[Diagnosis]) -> dict[str, dict[str, int]]:
    table: dict[str, Counter[str]] = {}
    for each in found:
        table.setdefault(each.repo, Counter())[_place(each) or each.status.value] += 1
    return {repo: dict(counts) for repo, counts in sorted(table.items())}


def _print(found: list[Diagnosis], refused: tuple[Refusal, ...]) -> None:
    from hone.cli.output import print_table

    columns = tuple(_counts(found, refused))
    print_table(
        ("repository", *columns),
        [
            (repo, *(counts.get(name, 0) for name in columns))
            for repo, counts in _by_repository(found).items()
        ],
    )
    reasons = Counter(each.natively.reason for each in found if each.natively.reason)
    if reasons:
        print_table(("rows", "why not natively"), [(n, reason) for reason, n in reasons.most_common(_SHOWN)])
    needs = Counter(
        need for each in found if _place(each) is None for need in each.needs if need.kind != "image"
    )
    if needs:
        rows = [(n, need.kind, need.name) for need, n in needs.most_common(_SHOWN)]
        print_table(("rows", "would be helped by", "name"), rows)
    for each in refused[:_SHOWN]:
        typer.echo(str(each), err=True)
    counts = _counts(found, refused)
    here = counts["natively"] + counts["in an image"]
    typer.echo(
        f"{here} of {len(found) + len(refused)} rows can be graded here, {counts['natively']} natively."
    )
