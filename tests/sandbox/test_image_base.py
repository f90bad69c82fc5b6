"""The user of an image's commands, as its configuration and its accounts define it."""

from __future__ import annotations

from pathlib import Path

import pytest

from hone.sandbox import ImageUnavailable
from hone.sandbox.namespaces import image


@pytest.fixture
def layers(tmp_path: Path) -> list[Path]:
    (tmp_path / "lower/etc").mkdir(parents=True)
    (tmp_path / "lower/etc/passwd").write_text("old:x:1:1::/old:/bin/sh\n")
    (tmp_path / "lower/etc/group").write_text("root:x:0:\nstaff:x:50:dev\n")
    (tmp_path / "upper/etc").mkdir(parents=True)
    accounts = "root:x:0:0:root:/root:/bin/sh\nbroken\ndev:x:1000:1001::/home/dev:/bin/sh\n"
    (tmp_path / "upper/etc/passwd").write_text(accounts)
    return [tmp_path / "lower", tmp_path / "upper"]


@pytest.mark.parametrize(
    ("user", "expected"),
    [
        ("", (0, 0, "/root")),
        ("dev", (1000, 1001, "/home/dev")),
        ("1000", (1000, 1001, "/home/dev")),
        ("dev:staff", (1000, 50, "/home/dev")),
        ("dev:77", (1000, 77, "/home/dev")),
        ("4242", (4242, 0, "/")),
    ],
)
def test_user_of_an_image_is_resolved(layers: list[Path], user: str, expected: tuple[int, int, str]) -> None:
    base = image.base("x:1", layers, {}, "", user)
    assert (base.uid, base.gid, base.env["HOME"]) == expected


@pytest.mark.parametrize(("user", "name"), [("old", "user 'old'"), ("dev:wheel", "group 'wheel'")])
def test_unknown_user_or_group_is_a_damaged_image(layers: list[Path], user: str, name: str) -> None:
    with pytest.raises(ImageUnavailable, match=name) as raised:
        image.base("x:1", layers, {}, "", user)
    assert raised.value.problem == "damaged_image"
