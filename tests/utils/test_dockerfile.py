"""Instructions, images and directories of a Dockerfile."""

from __future__ import annotations

import pytest

from hone.utils.dockerfile import base_images, last_workdir, read_instructions


def test_lines_are_joined_and_comments_left_out() -> None:
    text = "\ufeff# note\nRUN a && \\\n  # inside\n\n  b \\  \n  && c\nCOPY --from=x --chown=a:b  s  d\ncmd\n"
    found = [(each.line, each.name, each.flags, each.value.split()) for each in read_instructions(text)]
    assert found == [
        (2, "RUN", (), ["a", "&&", "b", "&&", "c"]),
        (7, "COPY", ("--from=x", "--chown=a:b"), ["s", "d"]),
        (8, "CMD", (), []),
    ]


def test_escape_directive_changes_what_continues_a_line() -> None:
    text = "# syntax=x\n# escape=`\nFROM a\nRUN one `\n two\nCOPY x c:\\\nENV A=1\n"
    assert [each.name for each in read_instructions(text)] == ["FROM", "RUN", "COPY", "ENV"]


@pytest.mark.parametrize(
    ("text", "images"),
    [
        ("FROM python:3.12-slim\n", ["python:3.12-slim"]),
        ("FROM scratch\n", []),
        ("FROM a AS b\nFROM b\nFROM B AS c\nCOPY --from=c x y\nCOPY --from=0 x y\n", ["a"]),
        ("ARG V=1\nARG N=x/y\nFROM ${N}:${V}\nARG N=z\n", ["x/y:1"]),
        ("ARG V\nFROM a:${V:-2}\n", ["a:2"]),
        ("ARG V\nFROM a:$V\n", []),
        ("FROM --platform=$BUILDPLATFORM a\nCOPY --from=ghcr.io/uv:1 /uv /\n", ["a", "ghcr.io/uv:1"]),
        ("FROM a\nRUN --mount=type=bind,from=b:1,target=/x true\n", ["a", "b:1"]),
        ("FROM a\nFROM a\n", ["a"]),
        ("FROM a@sha256:00 as x\n", ["a@sha256:00"]),
    ],
)
def test_images_that_a_build_needs_are_found(text: str, images: list[str]) -> None:
    assert base_images(read_instructions(text)) == images


@pytest.mark.parametrize(
    ("text", "workdir"),
    [
        ("FROM a\n", "/"),
        ("FROM a\nWORKDIR /app\nWORKDIR sub\n", "/app/sub"),
        ("FROM a\nWORKDIR /build\nFROM b\nWORKDIR app\n", "/app"),
        ("FROM a AS one\nWORKDIR /build\nFROM One\nWORKDIR app\n", "/build/app"),
        ('FROM a\nWORKDIR "/my app"\n# WORKDIR /other\n', "/my app"),
        ("FROM a\nRUN echo \\\n  WORKDIR /x\n", "/"),
    ],
)
def test_working_directory_is_that_of_the_last_stage(text: str, workdir: str) -> None:
    assert last_workdir(read_instructions(text)) == workdir
