"""`hone images pull | build | import | export | list | prune`"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from hone.cli.errors import FAILED, UsageError
from hone.cli.options import JsonOption, ProviderOption, SetOption, resolve_provider, run_with_progress

if TYPE_CHECKING:
    from hone.launch.reporter import Reporter
    from hone.sandbox.images import Image, ImageStore
    from hone.sandbox.images.skopeo import Report

Result = TypeVar("Result")

app = typer.Typer(help="Fetch, store and remove the images of sandboxes.", no_args_is_help=True)
CacheOption = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Cache directory (sandbox.cache_dir); default $XDG_CACHE_HOME/hone.",
    ),
]
BudgetOption = Annotated[
    float | None,
    typer.Option(metavar="GIB", help="Size limit of all images (sandbox.images_gib)."),
]
InsecureOption = Annotated[
    list[str] | None,
    typer.Option("--insecure-registry", metavar="HOST:PORT", help="Registry without TLS; may be repeated."),
]


@app.command()
def pull(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="REGISTRY/REPOSITORY:TAG")
    ] = None,
    listed: Annotated[
        Path | None,
        typer.Option("--list", metavar="FILE", help="Also the images listed in FILE, one name per line."),
    ] = None,
    proxy: Annotated[
        str, typer.Option("--proxy", metavar="PREFIX", help="Fetch PREFIX + name instead of the name.")
    ] = "",
    source_prefix: Annotated[
        str,
        typer.Option("--source-prefix", metavar="PREFIX", help="Prefix of the names that --proxy replaces."),
    ] = "",
    retries: Annotated[int, typer.Option("--retries", min=0, help="Retries of a failed image.")] = 0,
    retry_sleep: Annotated[
        float, typer.Option("--retry-sleep", min=0, metavar="S", help="Seconds before each retry.")
    ] = 15.0,
    at_once: Annotated[int, typer.Option("--at-once", min=1, help="Maximum concurrent pulls.")] = 3,
    cache_dir: CacheOption = None,
    gib: BudgetOption = None,
    insecure: InsecureOption = None,
) -> int:
    """Fetch and unpack images before the first sandbox needs them.

    Stored images of the list are skipped; images given as arguments are always checked against the registry.
    An image from a proxy is stored under its original name. Exit code 1 if an image failed, with a line for
    each failure.

    [bold]Example[/bold]: hone images pull --list images.txt --proxy mirror.lan/ --source-prefix docker.io/
    """
    from hone.sandbox.images.prepull import Route, prepull, read_list

    if source_prefix and not proxy:
        raise UsageError("--source-prefix has no effect without --proxy: pass both")
    wanted = [*(names or []), *(read_list(listed) if listed else [])]
    if not wanted:
        raise UsageError("no image to pull: pass names, or a file with --list")
    store = _open(cache_dir, gib, insecure)
    route = Route(proxy=proxy, prefix=source_prefix, retries=retries, retry_sleep_s=retry_sleep)

    def job(reporter: Reporter) -> dict[str, str]:
        with reporter.stage("pulling images", total=len(wanted)) as bar:
            renewed = names or []
            return _wait(
                prepull(
                    store, wanted, route, renewed, at_once=at_once, report=bar.set_status, done=bar.advance
                )
            )

    failures = run_with_progress(job)
    for name, sentence in failures.items():
        typer.echo(f"{name}: {sentence}")
    typer.echo(f"{len(wanted) - len(failures)} of {len(wanted)} images are stored.")
    return FAILED if failures else 0


@app.command()
def build(
    tasks: Annotated[Path, typer.Argument(metavar="TASKS", help="A JSONL file of tasks.")],
    provider: ProviderOption = "namespaces",
    at_once: Annotated[int, typer.Option("--at-once", min=1, help="Maximum concurrent builds.")] = 2,
    sets: SetOption = None,
) -> int:
    """Build the Dockerfiles of Harbor tasks before the first sandbox needs them.

    Each Dockerfile without a docker_image is built once, with the files beside it, and stored under a digest
    of them; those that are stored already are skipped. buildah builds them, without a daemon; a Docker engine
    where buildah is missing, and for --provider docker. A build has the network of this machine if the
    network_mode of its task is "public", else none. Exit code 1 if a build failed, with a line for each
    failure.

    [bold]Example[/bold]: hone images build tasks.jsonl --at-once 4
    """
    from hone.cli.grade import load_usable_tasks
    from hone.launch.images import build_images, dockerfiles_of
    from hone.utils.text import visible

    wanted = dockerfiles_of(load_usable_tasks(tasks))
    settings = resolve_provider(provider, sets)

    def job(reporter: Reporter) -> dict[str, str]:
        with reporter.stage("building images", total=len(wanted)) as bar:
            return _wait(build_images(wanted, settings.sandbox, at_once=at_once, done=bar.advance))

    failures = run_with_progress(job)
    for name, sentence in failures.items():
        typer.echo(visible(f"{name}: {sentence}"))
    typer.echo(f"{len(wanted) - len(failures)} of {len(wanted)} Dockerfiles are built.")
    return FAILED if failures else 0


@app.command("import")
def import_(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="docker-daemon:NAME, docker://NAME, FILE or DIRECTORY.")
    ],
    name: Annotated[
        str, typer.Option("--name", help="Name of the image; default: the name in the source.")
    ] = "",
    docker_url: Annotated[
        str,
        typer.Option(
            "--docker-url", metavar="URL", help="Docker engine (sandbox.docker_url); default $DOCKER_HOST."
        ),
    ] = "",
    cache_dir: CacheOption = None,
    gib: BudgetOption = None,
    insecure: InsecureOption = None,
) -> None:
    """Import an image from a Docker engine, an archive, an OCI layout, or a directory with a Dockerfile.

    Archives are made by `docker save` or `hone images export`. buildah builds a Dockerfile; the Docker engine
    does where --docker-url names it, or buildah is missing.

    [bold]Example[/bold]: hone images import image.tar --name shop/testbed:v1
    """
    store = _open(cache_dir, gib, insecure, docker_url)
    _print(_run(f"importing {source}", lambda report: store.import_(source, name=name, report=report)))


@app.command()
def export(
    name: Annotated[str, typer.Argument(metavar="NAME")],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The OCI archive to write.")],
    cache_dir: CacheOption = None,
) -> None:
    """Write a stored image to an archive, for machines without network.

    [bold]Example[/bold]: hone images export shop/testbed:v1 testbed.tar
    """
    store = _open(cache_dir, None, None)
    _print(_run(f"exporting {name}", lambda report: store.export(name, file, report=report)))


@app.command("list")
def list_(cache_dir: CacheOption = None, as_json: JsonOption = False) -> None:
    """List the stored images, the most recently used first.

    The size of an image includes shared layers; the total counts each layer once.

    [bold]Example[/bold]: hone images list --json
    """
    import time

    from hone.cli.output import print_json, print_table

    store = _open(cache_dir, None, None)
    images = _wait(store.list())
    if as_json:
        print_json(images)
        return
    now = time.time()
    rows = [
        (image.name, image.digest[7:19], len(image.layers), _gib(image.bytes), _ago(now - image.last_used))
        for image in images
    ]
    print_table(("image", "digest", "layers", "GiB", "last used"), rows)
    typer.echo(f"{len(images)} images, {_gib(_wait(store.taken_bytes()))} GiB on disk.")


@app.command()
def prune(
    to: Annotated[
        float | None, typer.Option("--to", min=0, metavar="GIB", help="Target size; default: --gib.")
    ] = None,
    unused: Annotated[
        bool, typer.Option("--unused", help="Remove all images that no sandbox uses, and what builds keep.")
    ] = False,
    cache_dir: CacheOption = None,
    gib: BudgetOption = None,
) -> None:
    """Remove the least recently used images until the rest fits; keep images in use.

    [bold]Example[/bold]: hone images prune --to 50
    """
    if unused and to is not None:
        raise UsageError("--unused and --to exclude each other: remove one of them")
    store = _open(cache_dir, gib, None)
    limit = 0 if unused else None if to is None else int(to * 2**30)
    removed = _run("removing images", lambda _: store.prune(limit))
    typer.echo(f"{removed} images removed; {_gib(_wait(store.taken_bytes()))} GiB are left.")


def _open(
    cache_dir: Path | None, gib: float | None, insecure: list[str] | None, docker_url: str = ""
) -> ImageStore:
    from hone.sandbox.images import ImageStore
    from hone.sandbox.settings import SandboxSettings
    from hone.utils.files import default_cache_dir

    return ImageStore(
        (cache_dir or default_cache_dir()) / "images",
        budget_gib=SandboxSettings().images_gib if gib is None else gib,
        insecure_registries=insecure or (),
        docker_url=docker_url,
    )


def _wait(work: Coroutine[Any, Any, Result]) -> Result:
    import asyncio

    return asyncio.run(work)


def _run(title: str, work: Callable[[Report], Coroutine[Any, Any, Result]]) -> Result:
    def job(reporter: Reporter) -> Result:
        with reporter.stage(title) as bar:
            return _wait(work(bar.set_status))

    return run_with_progress(job)


def _print(image: Image) -> None:
    typer.echo(f"{image.name}  {image.digest}  {len(image.layers)} layers  {_gib(image.bytes)} GiB")


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f}"


def _ago(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit} ago"
    return "now"
