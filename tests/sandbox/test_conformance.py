"""Hone's providers pass the conformance suite.

`make test` runs every check on the namespaces provider, a smoke of them on each other one, and of podman,
which has the provider and the API of Docker, only whether it serves them; `make test-full` runs every check
on every provider, and on a pool of Docker nodes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, AsyncExitStack, ExitStack, contextmanager
from pathlib import Path
from typing import cast

import pytest

from hone.sandbox import Provider, make_provider
from hone.sandbox.conformance import CHECKS, Check
from hone.sandbox.conformance.suite import Run, WithImage, open_provider
from hone.sandbox.settings import SandboxSettings
from tests.sandbox.engine_run import run_on
from tests.sandbox.node.served import NodeProvider, served
from tests.sandbox.ordinary_user import run_as_ordinary_user
from tests.services.image import BASE_IMAGE
from tests.services.servers import node_server, pool_server

pytestmark = pytest.mark.sandbox

OpenRun = Callable[[str], Run]
Open = Callable[[pytest.FixtureRequest, Path], AbstractContextManager[Run]]
SMOKE = {
    "a_shell_command_runs_in_bash",
    "an_argument_list_reaches_the_program_unchanged",
    "a_program_that_is_not_executable_is_exit_code_126",
    "commands_start_in_workdir_unless_told_otherwise",
    "the_environment_holds_path_home_and_what_was_given",
    "long_output_keeps_head_and_tail_and_counts_all",
    "input_and_output_flow_at_the_same_time",
    "output_is_reported_as_it_arrives",
    "a_timed_out_command_dies_with_its_children",
    "a_timeout_spares_the_other_commands",
    "a_cancelled_command_dies",
    "closing_during_a_command_makes_it_raise",
    "an_image_that_cannot_be_served_is_refused_for_good",
    "files_are_written_and_read_as_bytes",
    "reading_a_path_that_is_no_file_raises",
    "trees_travel_in_and_out",
    "a_download_refuses_links_that_leave_the_tree",
    "a_download_refuses_special_files",
    "a_layer_is_the_workdirs_content_and_stays_unwritten",
    "mounts_are_visible_and_read_only",
    "there_is_no_network",
    "commands_have_no_privileges",
    "no_more_processes_than_allowed_exist",
    "a_tunnel_reaches_its_service",
    "health_is_good",
}


@contextmanager
def _namespaces(request: pytest.FixtureRequest, base: Path) -> Iterator[Run]:
    settings = SandboxSettings(state_dir=base / "state", cache_dir=base.parent / "cache")
    with open_provider(make_provider(settings)) as run:
        yield run
    assert list((base / "state").iterdir()) == []


@contextmanager
def _namespaces_with_image(request: pytest.FixtureRequest, base: Path) -> Iterator[Run]:
    image = f"docker://{request.getfixturevalue('registry_image')}"
    settings = SandboxSettings(state_dir=base / "state", cache_dir=base.parent / "cache")
    with open_provider(WithImage(make_provider(settings), image)) as run:
        yield run
    assert list((base / "state").iterdir()) == []


def _docker(request: pytest.FixtureRequest, base: Path) -> AbstractContextManager[Run]:
    return run_on(request.getfixturevalue("docker"), base)


def _podman(request: pytest.FixtureRequest, base: Path) -> AbstractContextManager[Run]:
    return run_on(request.getfixturevalue("podman"), base)


class _ServedNode(NodeProvider):
    """A node server on the event loop of its client, through HTTP."""

    def __init__(self, base: Path) -> None:
        self._base, self._server = base, AsyncExitStack()

    async def __aenter__(self) -> NodeProvider:
        local = make_provider(SandboxSettings(state_dir=self._base / "provider"))
        url = await self._server.enter_async_context(served(local, self._base / "node", max_sandboxes=64))
        super().__init__(url)
        return await super().__aenter__()

    async def __aexit__(self, *exc: object) -> None:
        await super().__aexit__(*exc)
        await self._server.aclose()


@contextmanager
def _node(request: pytest.FixtureRequest, base: Path) -> Iterator[Run]:
    with open_provider(cast("Provider", _ServedNode(base))) as run:  # it has no digests
        yield run
    assert list((base / "node").iterdir()) == []
    assert list((base / "provider").iterdir()) == []


@contextmanager
def _pool(request: pytest.FixtureRequest, base: Path) -> Iterator[Run]:
    """Client, pool server and a node server of namespaces, each in its own process."""
    with _open_pool(base, "namespaces", {}) as run:
        yield run


@contextmanager
def _pool_docker(request: pytest.FixtureRequest, base: Path) -> Iterator[Run]:
    docker = request.getfixturevalue("docker")
    with docker.client() as client:  # `hone node` takes the default of the setting `docker_image`
        repository, tag = SandboxSettings().docker_image.split(":")
        client.post(f"/images/{BASE_IMAGE}/tag?repo={repository}&tag={tag}").raise_for_status()
    with _open_pool(base, "docker", {"DOCKER_HOST": docker.url}) as run:
        yield run
    with docker.client() as client:
        assert client.get("/containers/json?all=1").json() == []


@contextmanager
def _open_pool(base: Path, provider: str, environment: dict[str, str]) -> Iterator[Run]:
    token_file, node_token_file = base / "token", base / "node-token"
    for file in (token_file, node_token_file):
        file.write_text(f"the-{file.name}")
        file.chmod(0o600)
    with (
        node_server(node_token_file, provider, environment) as node,
        pool_server(token_file, node_token_file, node) as pool,
    ):
        settings = SandboxSettings(
            provider="pool", pool_url=pool, pool_token_file=token_file, state_dir=base / "state"
        )
        with open_provider(make_provider(settings)) as run:
            yield run


PROVIDERS: dict[str, Open] = {
    "namespaces": _namespaces,
    "namespaces-image": _namespaces_with_image,
    "docker": _docker,
    "podman": _podman,
    "node": _node,
    "pool": _pool,
    "pool-docker": _pool_docker,
}
ENGINES = ("docker", "podman", "pool-docker")  # one worker runs them all
IN_MAKE_TEST: dict[str, set[str]] = {  # where it is not the smoke
    "namespaces": {check.__name__ for check in CHECKS},
    "podman": {"a_shell_command_runs_in_bash", "a_timed_out_command_dies_with_its_children"},
    "pool-docker": set(),  # a pool and Docker, each of which has a smoke
}
CASES = [
    pytest.param(
        name,
        check,
        id=f"{name}-{check.__name__}",
        marks=[
            pytest.mark.xdist_group("engines" if name in ENGINES else f"conformance-{name}"),
            *([] if check.__name__ in IN_MAKE_TEST.get(name, SMOKE) else [pytest.mark.full]),
        ],
    )
    for name in PROVIDERS
    for check in CHECKS
]


@pytest.fixture(scope="module")
def open_run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenRun]:
    """Return a function that opens the provider of a name; asking for another name closes it."""
    with ExitStack() as stack:
        current: dict[str, Run] = {}

        def get(name: str) -> Run:
            if name not in current:
                current.clear()
                stack.close()
                current[name] = stack.enter_context(PROVIDERS[name](request, tmp_path_factory.mktemp("hone")))
            return current[name]

        yield get


@pytest.mark.parametrize(("name", "check"), CASES)
def test_provider(name: str, check: Check, open_run: OpenRun) -> None:
    open_run(name)(check)


def test_smoke_names_existing_checks() -> None:
    assert {check.__name__ for check in CHECKS} >= SMOKE


@pytest.mark.xdist_group("conformance-namespaces-image")
def test_digest_of_an_image_is_stable(open_run: OpenRun) -> None:
    async def ask(provider: Provider) -> None:
        digest = await provider.digest("host")
        assert digest.startswith("sha256:")
        assert await provider.digest("host") == digest

    open_run("namespaces-image")(ask)


@pytest.mark.full
@pytest.mark.timeout(900)  # all checks of the namespaces provider at once
@pytest.mark.skipif(os.geteuid() != 0, reason="the tests above already ran as an ordinary user")
def test_suite_passes_as_an_ordinary_user() -> None:
    options = [
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        "-k",
        "test_provider and namespaces- and not namespaces-image",
    ]
    done = run_as_ordinary_user([sys.executable, "-m", "pytest", *options, __file__])
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-4000:]
    assert f"{len(CHECKS)} passed" in done.stdout
