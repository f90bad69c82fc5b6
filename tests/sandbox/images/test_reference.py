"""Image names: one full name for all spellings, an error for invalid ones."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hone.sandbox import ImageUnavailable
from hone.sandbox.images.reference import canonical, parse

D = "sha256:" + "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("python", "docker.io/library/python:latest"),
        ("docker://python:3.11", "docker.io/library/python:3.11"),
        ("docker.io/python", "docker.io/library/python:latest"),
        ("index.docker.io/library/python", "docker.io/library/python:latest"),
        ("swe/sweb.eval.x86_64.a_1776_b-1:v1", "docker.io/swe/sweb.eval.x86_64.a_1776_b-1:v1"),
        ("localhost/x", "localhost/x:latest"),
        ("localhost:5000/x/y/z:v1", "localhost:5000/x/y/z:v1"),
        ("[::1]:5000/x", "[::1]:5000/x:latest"),
        (f"quay.io/a/b@{D}", f"quay.io/a/b@{D}"),
        (f"a/b:tag@{D}", f"docker.io/a/b@{D}"),
        ("REGISTRY/x", "REGISTRY/x:latest"),
    ],
)  # fmt: skip
def test_spellings_have_one_full_name(text: str, name: str) -> None:
    assert parse(text).name == name


@pytest.mark.parametrize(
    "text",
    ["", "docker://", ":", "a:", "a@", "a@sha256:12", "A", "a/B", "a b", "a\n", "-a", "a/-b", "a//b", "/a",
     "a/",
     "..", "a/../b", "a:../b", "a:b:c", "x.y:99999999/a",
     "a" * 300, "a:" + "t" * 129, "--flag", "é"],
)  # fmt: skip
def test_invalid_name_is_refused_in_one_sentence(text: str) -> None:
    with pytest.raises(ImageUnavailable, match="is not the name of an image") as raised:
        parse(text)
    assert raised.value.problem == "unknown_image"
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("registry", "local"),
    [("localhost", True), ("localhost:1", True), ("127.0.0.1:5000", True), ("127.8.8.8", True),
     ("[::1]:1", True),
     ("localhost.evil.com", False), ("127.0.0.1.evil.com", False), ("10.0.0.1:5000", False)],
)  # fmt: skip
def test_loopback_registries_are_recognised(registry: str, local: bool) -> None:
    assert parse(f"{registry}/x").is_loopback is local


component = st.from_regex(r"[a-z0-9]{1,8}(?:(?:\.|_|__|-{1,3})[a-z0-9]{1,8}){0,2}", fullmatch=True)
registries = st.sampled_from(["localhost", "docker.io", "quay.io", "127.0.0.1:5000", "a-b.example.com:80"])
tags = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,20}", fullmatch=True)


@given(registries, st.lists(component, min_size=2, max_size=4), tags)
def test_full_name_is_unchanged(registry: str, path: list[str], tag: str) -> None:
    name = f"{registry}/{'/'.join(path)}:{tag}"
    reference = parse(name)
    assert (reference.name, reference.registry, reference.tag) == (name, registry, tag)
    assert parse(f"docker://{name}") == reference


@given(st.text(max_size=40))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    with contextlib.suppress(ImageUnavailable):
        reference = parse(text)
        assert parse(reference.name) == reference
        assert not reference.name.startswith("-")
        assert not set(reference.name) & set(" \n\t\"'$;")


def test_canonical_spelling_is_unique() -> None:
    one = {
        canonical(text) for text in ("python", "docker://python:latest", "docker.io/library/python:latest")
    }
    assert one == {"docker.io/library/python:latest"}
    assert (canonical("host"), canonical("rootfs:/srv/x")) == ("host", "rootfs:/srv/x")
