"""A small image (bash, git, python3 with pytest, core utilities) made of this machine's own programs.

Nothing is downloaded: the programs, the libraries they need and the running interpreter's standard library
are packed as one layer in the format of `docker save`, which dockerd, podman and skopeo all read.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import io
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any

BASE_IMAGE = "hone-base:latest"

_PROGRAMS = """
[ arch awk b2sum base32 base64 basename bash cat chgrp chmod chown cksum clear cmp comm cp csplit cut date
dd df diff dirname du echo env expand expr factor false find fmt fold free getent git grep groups gunzip
gzip head hostname id install join kill link ln logname ls md5sum mkdir mkfifo mknod mktemp mount mv nice nl
nohup nproc numfmt od paste patch pathchk pgrep pidof pinky pkill pr printenv printf prlimit ps ptx pwd
python3 readlink realpath rm rmdir sed seq setpriv setsid sh sha1sum sha256sum sha512sum shred shuf sleep
sort split stat stdbuf stty sum sync tac tail tar tee test timeout touch tr true truncate tsort tty umount
uname unexpand uniq unlink unshare uptime vdir wc which who whoami xargs yes
"""
_PYTHON_PACKAGES = ("pytest", "iniconfig", "packaging", "pluggy", "pygments")
# Each operation on the image costs by its size.
_NOT_NEEDED = {
    "test", "tests", "idlelib", "turtle", "turtledemo", "tkinter", "_tkinter", "ensurepip", "lib2to3",
    "pydoc_data", "__pycache__", "_testcapi", "_testinternalcapi", "_testclinic", "_testbuffer",
    "_xxtestfuzz",
}  # fmt: skip
_FOLDERS = ("dev", "home", "media", "mnt", "opt", "proc", "root", "run", "srv", "sys", "tmp", "var/tmp")
_LINKS = {name: f"usr/{name}" for name in ("bin", "sbin", "lib", "lib64")}
_ETC = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/nonexistent:/bin/false\n",
    "etc/group": "root:x:0:\nnogroup:x:65534:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
    "etc/os-release": "ID=hone-base\nNAME=hone-base\n",
}
_CONFIG = {"Env": ["PATH=/usr/local/bin:/usr/bin:/bin"], "Cmd": ["bash"]}


def base_archive() -> Path:
    """The base image as an archive; packed once per machine and interpreter, then found in a cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hone-tests"
    cache.mkdir(parents=True, exist_ok=True)
    key = hashlib.sha256(Path(__file__).read_bytes() + sys.version.encode()).hexdigest()[:16]
    archive = cache / f"base-{key}.tar"
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            with tempfile.TemporaryDirectory(dir=cache) as folder:
                layer = Path(folder) / "layer.tar"
                _pack_base(layer)
                write_archive(Path(folder) / "image.tar", BASE_IMAGE, [layer], _CONFIG)
                (Path(folder) / "image.tar").rename(archive)
    return archive


def unpack_base(root: Path) -> None:
    """Unpack the base image's files into an existing directory, for `rootfs:ROOT`."""
    with tarfile.open(base_archive()) as archive:
        layer = _member(archive, json.load(_member(archive, "manifest.json"))[0]["Layers"][0])
        with tarfile.open(fileobj=layer) as tar:
            tar.extractall(root, filter="fully_trusted")
    root.chmod(0o755)


def derive(target: Path, name: str, files: Mapping[str, bytes], config: Mapping[str, Any]) -> None:
    """Write the archive of an image `name`: the base image, a layer of `files`, and `config` over its own."""
    with tempfile.TemporaryDirectory() as folder:
        base, layer = Path(folder) / "base.tar", Path(folder) / "layer.tar"
        with tarfile.open(base_archive()) as archive:
            member = json.load(_member(archive, "manifest.json"))[0]["Layers"][0]
            with base.open("wb") as file:
                shutil.copyfileobj(_member(archive, member), file)
        with tarfile.open(layer, "w") as tar:
            for path, data in files.items():
                _add_file(tar, path, data)
        write_archive(target, name, [base, layer], {**_CONFIG, **config})


def write_archive(target: Path, name: str, layers: list[Path], config: Mapping[str, Any]) -> None:
    """Write an image in the format of `docker save`: `layers` are uncompressed tar files, lowest first.

    Args:
        config: of its containers, as in the OCI image format: Env, WorkingDir, User, Entrypoint, Cmd ...
    """
    digests = [_sha256(layer) for layer in layers]
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    image = {
        "architecture": machine,
        "os": "linux",
        "created": "2024-01-01T00:00:00Z",
        "config": dict(config),
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}" for digest in digests]},
        "history": [{"created": "2024-01-01T00:00:00Z"} for _ in digests],  # buildah counts them
    }
    described = json.dumps(image).encode()
    config_name = hashlib.sha256(described).hexdigest() + ".json"
    members = [f"{digest}/layer.tar" for digest in digests]
    with tarfile.open(target, "w") as archive:
        for member, layer in zip(members, layers, strict=True):
            archive.add(layer, member)
        _add_file(archive, config_name, described)
        manifest = [{"Config": config_name, "RepoTags": [name], "Layers": members}]
        _add_file(archive, "manifest.json", json.dumps(manifest).encode())


# --- the base layer


def _pack_base(target: Path) -> None:
    programs = {name: Path(found) for name in _PROGRAMS.split() if (found := shutil.which(name))}
    programs["python3"] = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    stdlib = Path(sysconfig.get_path("stdlib"))
    git_core = Path(_output(["git", "--exec-path"]).strip())
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for name in _FOLDERS:
            (root / name).mkdir(parents=True)
        for name in ("tmp", "var/tmp"):
            (root / name).chmod(0o1777)
        for name, text in _ETC.items():
            (root / name).parent.mkdir(exist_ok=True)
            (root / name).write_text(text)
        for link, to in _LINKS.items():
            (root / to).mkdir(parents=True)
            (root / link).symlink_to(to)
        for name, path in programs.items():
            _copy(path, root / "usr/bin" / name)
        python = f"/usr/local/bin/python{sys.version_info.major}.{sys.version_info.minor}"
        _place_python(root, python, stdlib)
        shutil.copytree(git_core, root / "usr/lib/git-core", symlinks=True, ignore=_git_extras)
        if (root / "usr/lib/git-core/git").is_file():  # a second copy of the largest program
            (root / "usr/lib/git-core/git").unlink()
            (root / "usr/lib/git-core/git").symlink_to("../../bin/git")
        templates = Path("/usr/share/git-core/templates")
        if templates.is_dir():
            shutil.copytree(templates, root / str(templates).lstrip("/"))
        extensions = [path for path in (stdlib / "lib-dynload").glob("*.so") if not _is_unneeded(path.name)]
        for library in _libraries([*programs.values(), *extensions]):
            _copy(library, root / _merged(library))
        if (cache := Path("/etc/ld.so.cache")).exists():
            _copy(cache, root / "etc/ld.so.cache")
        _strip_symbols(root)
        with tarfile.open(target, "w") as tar:
            tar.add(root, ".", filter=_owned_by_root)


def _place_python(root: Path, python: str, stdlib: Path) -> None:
    """Under /usr/local, where the interpreter finds its library by its own path; pytest lies beside it."""
    library = root / "usr/local/lib" / Path(python).name
    shutil.copytree(stdlib, library, ignore=_python_extras)
    for config in library.glob("config-*"):
        shutil.rmtree(config)
    for package in _PYTHON_PACKAGES:
        for file in importlib.metadata.files(package) or ():
            if ".." not in file.parts and "__pycache__" not in file.parts and not _is_other_lexer(file):
                _copy(Path(str(file.locate())), library / file)
    compile_modules(library, "/usr/local/lib")
    (root / python.lstrip("/")).parent.mkdir()
    (root / "usr/bin/python3").rename(root / python.lstrip("/"))
    for link in ("usr/local/bin/python3", "usr/local/bin/python", "usr/bin/python3"):
        (root / link).symlink_to(python)
    pytest = root / "usr/local/bin/pytest"
    pytest.write_text(f"#!{python}\nimport sys, pytest\nsys.exit(pytest.console_main())\n")
    pytest.chmod(0o755)


def compile_modules(library: Path, at: str, python: Path | None = None) -> None:
    """Compile the modules below `library`, which lies in the directory `at` of the image.

    A sandbox cannot keep what its Python compiles: without this, each start of pytest compiles all modules.
    A module that changes afterwards is compiled again, since its time differs.

    Args:
        python: the interpreter that will import them; default: the running one.
    """
    python = python or Path(sys.executable)
    command = [python, "-I", "-m", "compileall", "-q", "-d", f"{at}/{library.name}", library]
    done = subprocess.run(command, capture_output=True, text=True)  # 1: a module is not for this version
    if done.returncode not in (0, 1) or not any(library.rglob("*.pyc")):
        raise RuntimeError(f"cannot compile {library}: {done.stdout[-2000:]}{done.stderr[-2000:]}")


def _strip_symbols(root: Path) -> None:
    """Remove the debugging symbols of programs and libraries, most of their size, where there is `strip`."""
    if shutil.which("strip") is None:
        return
    for path in root.rglob("*"):
        if path.is_symlink() or not path.is_file():
            continue
        with path.open("rb") as file:
            is_elf = file.read(4) == b"\x7fELF"
        if is_elf:
            subprocess.run(["strip", "--strip-unneeded", path], capture_output=True)  # or it stays as it is


def _python_extras(folder: str, names: list[str]) -> set[str]:
    return {name for name in names if name == "site-packages" or _is_unneeded(name)}


def _is_unneeded(name: str) -> bool:
    return name.partition(".")[0] in _NOT_NEEDED


def _is_other_lexer(file: PurePath) -> bool:
    """Whether pygments has the file for languages or looks that pytest never shows."""
    kept = {"__init__", "_mapping", "default", "diff", "python", "special"}
    return file.parent.name in ("lexers", "styles") and file.stem not in kept


def _git_extras(folder: str, names: list[str]) -> set[str]:
    """What git's own folder holds for networks and mail: half of its size, never needed without either."""
    return {name for name in names if re.search(r"remote-|imap|daemon|http-|shell$|mergetools|scalar", name)}


def _libraries(binaries: list[Path]) -> set[Path]:
    found: set[Path] = set()
    for binary in binaries:  # one at a time: ldd fails for scripts and static programs
        done = subprocess.run(["ldd", binary], capture_output=True, text=True)
        found.update(Path(path) for path in re.findall(r"(/\S+) \(0x", done.stdout))
    beside = {path.parent / "libgcc_s.so.1" for path in found}  # loaded by name when a thread is cancelled
    return found | {path for path in beside if path.exists()}


def _merged(path: Path) -> str:
    """Where a host's path lies in the image, in which /bin, /sbin and /lib* are links into /usr."""
    relative = str(path).lstrip("/")
    return f"usr/{relative}" if relative.split("/")[0] in _LINKS else relative


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, target)


def _output(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


# --- tar


def _member(archive: tarfile.TarFile, name: str) -> Any:
    file = archive.extractfile(name)
    assert file is not None, f"{name} is not a file"
    return file


def _add_file(tar: tarfile.TarFile, path: str, data: bytes) -> None:
    info = tarfile.TarInfo(path)
    info.size, info.mode = len(data), 0o644
    tar.addfile(info, io.BytesIO(data))


def _owned_by_root(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    info.uname = info.gname = "root"
    info.mtime = int(info.mtime)  # not every engine unpacks fractions, and compiled modules name the time
    if info.name == ".":
        info.mode = 0o755
    return info


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
