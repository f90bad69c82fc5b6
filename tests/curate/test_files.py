import pytest

from hone.curate.files import Kind, is_inside, kind_of, packages


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("src/shop/prices.py", Kind.SOURCE),
        ("shop.py", Kind.SOURCE),
        ("shop/testing.py", Kind.SOURCE),
        ("shop/testing/__init__.py", Kind.SOURCE),
        ("tests/test_prices.py", Kind.TEST),
        ("shop/tests/data/prices.json", Kind.TEST),
        ("testing/test_config.py", Kind.TEST),
        ("shop/prices_test.py", Kind.TEST),
        ("conftest.py", Kind.TEST),
        ("setup.py", Kind.OTHER),
        ("docs/conf.py", Kind.OTHER),
        (".github/workflows/tests.yml", Kind.OTHER),
        ("examples/buy.py", Kind.OTHER),
        ("pyproject.toml", Kind.OTHER),
        ("CHANGES.rst", Kind.OTHER),
        ("shop/README.md", Kind.OTHER),
        ("shop/locale/de.json", Kind.DATA),
        ("shop/_speedups.c", Kind.COMPILED),
    ],
)
def test_path_decides_the_kind_of_a_file(path, kind):
    assert kind_of(path) is kind


def test_data_in_a_package_belongs_to_the_source():
    folders = packages(["src/shop/__init__.py", "src/shop/prices.py", "deploy/app.yml"])
    assert is_inside("src/shop/locale/de.json", folders)
    assert not is_inside("deploy/app.yml", folders)
