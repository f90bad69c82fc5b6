"""Dockerfiles as authors of tasks write them: the files beside each, a command, and what it prints inside.

All start from `python:3.12-slim`, a name that tests give to their base image.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field

BASE = "python:3.12-slim"


@dataclass(frozen=True, slots=True, kw_only=True)
class Typical:
    text: str | bytes
    command: str
    prints: str
    files: Mapping[str, str | bytes] = field(default_factory=dict[str, "str | bytes"])


def _archive() -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        member = tarfile.TarInfo("data/values.csv")
        member.size = 4
        archive.addfile(member, io.BytesIO(b"1,2\n"))
    return packed.getvalue()


_PACKAGE = {
    "pkg/greet/__init__.py": "def hello():\n    return 'hello'\n",
    "pkg/setup.cfg": "[metadata]\nname = greet\n",
}

TYPICAL: Mapping[str, Typical] = {
    "run and workdir": Typical(
        text=f"FROM {BASE}\nWORKDIR /app\nRUN echo ready > state.txt\n",
        command="pwd; cat state.txt",
        prints="/app\nready\n",
    ),
    "copy of globs and directories": Typical(
        text=f"FROM {BASE}\nWORKDIR /app\nCOPY *.txt d?r ./\nCOPY sub/ /sub/\n",
        command="ls; ls /sub",
        prints="a.txt\nb.txt\nz\ninner\n",
        files={"a.txt": "", "b.txt": "", "c.md": "", "dir/z": "", "sub/inner": ""},
    ),
    "stages": Typical(
        text=(
            f"FROM {BASE} AS builder\nWORKDIR /build\nRUN echo made > program\n"
            f"FROM {BASE}\nCOPY --from=builder /build/program /usr/local/bin/program\nWORKDIR /srv/app\n"
        ),
        command="pwd; cat /usr/local/bin/program; ls /build 2>/dev/null || echo gone",
        prints="/srv/app\nmade\ngone\n",
    ),
    "arguments before and in stages": Typical(
        text=(
            "ARG VERSION=3.12\nARG FLAVOUR\nFROM python:${VERSION}-${FLAVOUR:-slim}\nARG VERSION\n"
            "ARG LEVEL=7\nENV LEVEL=${LEVEL}\nWORKDIR /app\nRUN echo $VERSION-$LEVEL > out\n"
        ),
        command="cat out; echo $LEVEL",
        prints="3.12-7\n7\n",
    ),
    "environment": Typical(
        text=(
            f'FROM {BASE}\nENV A=1 B="two words"\nENV PATH=/opt/tool/bin:$PATH\nENV OLD the old form\n'
            "ENV C=${A:-9}${D:-none}\nWORKDIR /app\n"
        ),
        command='echo "$A|$B|$C|$OLD"; echo $PATH | cut -d: -f1',
        prints="1|two words|1none|the old form\n/opt/tool/bin\n",
    ),
    "owners": Typical(
        text=(
            f"FROM {BASE}\nRUN echo 'dev:x:1000:1000::/srv/dev:/bin/bash' >> /etc/passwd && "
            "echo 'dev:x:1000:' >> /etc/group && mkdir -p /srv/dev && chown dev:dev /srv/dev\n"
            "COPY --chown=dev:dev a.txt /srv/dev/\nUSER dev\nWORKDIR /srv/dev\n"
            'RUN id -un > who && touch "$HOME/mine"\n'
        ),
        command="cat who; ls; id -u; echo more >> a.txt && cat a.txt",
        prints="dev\na.txt\nmine\nwho\n1000\nmore\n",
        files={"a.txt": ""},
    ),
    "modes": Typical(
        text=(
            f"FROM {BASE}\nWORKDIR /app\nCOPY --chmod=0755 tool.sh /usr/local/bin/tool\nCOPY run.sh .\n"
            "RUN chmod +x run.sh && ./run.sh > out\n"
        ),
        command="tool; cat out",
        prints="tool\nrun\n",
        files={"tool.sh": "#!/bin/sh\necho tool\n", "run.sh": "#!/bin/sh\necho run\n"},
    ),
    "archive": Typical(
        text=f"FROM {BASE}\nADD data.tar.gz /app/\nCOPY data.tar.gz /app/packed\nWORKDIR /app\n",
        command="cat data/values.csv; ls",
        prints="1,2\ndata\npacked\n",
        files={"data.tar.gz": _archive()},
    ),
    "ignored files": Typical(
        text=f"FROM {BASE}\nWORKDIR /app\nCOPY . .\n",
        command="find . -type f | sort",
        prints="./Dockerfile\n./deep/kept.py\n./keep.md\n",
        files={
            ".dockerignore": ".dockerignore\n*.md\n!keep.md\n**/*.pyc\nsecret/\n# comment\n",
            "a.md": "",
            "keep.md": "",
            "deep/x.pyc": "",
            "deep/kept.py": "",
            "secret/key": "",
        },
    ),
    "shell": Typical(
        text=(
            f'FROM {BASE}\nSHELL ["/bin/bash", "-o", "pipefail", "-c"]\nWORKDIR /app\n'
            "RUN (false | true) && echo sloppy > out || echo strict > out; [[ -n $BASH ]] && echo $0 >> out\n"
        ),
        command="cat out",
        prints="strict\n/bin/bash\n",
    ),
    "relative directories": Typical(
        text=f"FROM {BASE}\nWORKDIR /a\nWORKDIR b\nWORKDIR ../c\nRUN pwd > /where\n",
        command="cat /where; pwd",
        prints="/a/c\n/a/c\n",
    ),
    "instructions for containers": Typical(
        text=(
            f'FROM {BASE}\nLABEL maintainer="a b" version=1\nMAINTAINER someone\nEXPOSE 8080/tcp\n'
            "STOPSIGNAL SIGTERM\nHEALTHCHECK --interval=5s --retries=3 CMD true\nWORKDIR /app\n"
            'ENTRYPOINT ["python3", "-c"]\nCMD ["print(1)"]\n'
        ),
        command="echo alive",
        prints="alive\n",
    ),
    "volume": Typical(
        text=f'FROM {BASE}\nWORKDIR /app\nRUN mkdir /data && echo kept > /data/a\nVOLUME ["/data"]\n',
        command="cat /data/a; touch /data/b && ls /data",
        prints="kept\na\nb\n",
    ),
    "onbuild of a stage": Typical(
        text=(
            f"FROM {BASE} AS base\nONBUILD RUN echo triggered > /triggered\n"
            "FROM base\nWORKDIR /app\nRUN cat /triggered > copied\n"
        ),
        command="cat copied",
        prints="triggered\n",
    ),
    "syntax directive and build mounts": Typical(
        text=(
            f"# syntax=docker/dockerfile:1\nFROM {BASE}\nWORKDIR /app\n"
            "RUN --mount=type=cache,target=/var/cache/pip touch /var/cache/pip/x && echo cached > out\n"
            "RUN --mount=type=bind,source=list.txt,target=/tmp/list.txt cat /tmp/list.txt >> out\n"
        ),
        command="cat out; ls -A /var/cache/pip 2>/dev/null; cat /tmp/*",  # its mount point stays
        prints="cached\none\n",
        files={"list.txt": "one\n"},
    ),
    "long run with comments": Typical(
        text=(
            f"FROM {BASE}\nWORKDIR /app\n# first\n"
            "RUN set -eux; \\\n    # a comment\n    echo one > out; \\\n\n"
            "    echo two >> out \\\n    && echo 'a <<not b' >> out\n"
        ),
        command="cat out",
        prints="one\ntwo\na <<not b\n",
    ),
    "a repository made inside": Typical(
        text=(
            f"FROM {BASE}\nWORKDIR /app\nCOPY . .\nRUN git init -q && git config user.name a && "
            "git config user.email a@b && git add -A && git commit -qm start && rm Dockerfile\n"
        ),
        command="git log --format=%s; git status --porcelain",
        prints="start\n D Dockerfile\n",
        files={"main.py": "print(1)\n"},
    ),
    "a local package": Typical(
        text=(
            f"FROM {BASE}\nCOPY pkg /src/pkg\nWORKDIR /app\n"
            "RUN site=$(python3 -c 'import sysconfig; print(sysconfig.get_path(\"purelib\"))') && "
            'mkdir -p "$site" && cp -r /src/pkg/greet "$site/" && '
            "python3 -c 'import greet; print(greet.hello())' > out\n"
        ),
        command="cat out; python3 -c 'import greet; print(greet.__name__)'",
        prints="hello\ngreet\n",
        files=_PACKAGE,
    ),
    "unicode and line ends of Windows": Typical(
        text=(
            f"\ufeffFROM {BASE}\r\nWORKDIR /app\r\nENV NAME=Zo\u00eb\r\nCOPY d\u00e9j\u00e0.txt ./\r\n"
            "RUN echo \u4f60\u597d > out && \\\r\n    echo end >> out\r\n"
        ),
        command="cat out d\u00e9j\u00e0.txt; echo $NAME",
        prints="\u4f60\u597d\nend\nvu\nZo\u00eb\n",
        files={"d\u00e9j\u00e0.txt": "vu\n"},
    ),
    "exec form and quoted paths": Typical(
        text=(
            f'FROM {BASE}\nWORKDIR "/my app"\nCOPY ["a file.txt", "./the file.txt"]\n'
            "RUN [\"python3\", \"-c\", \"open('out', 'w').write('$HOME\\\\n')\"]\n"
        ),
        command="pwd; ls; cat out",
        prints="/my app\nout\nthe file.txt\n$HOME\n",
        files={"a file.txt": ""},
    ),
    "link and escape directive": Typical(
        text=(
            f"# escape=`\nFROM {BASE}\nWORKDIR /app\n"
            "RUN mkdir real && `\n    ln -s real link && echo a > link/f\nCOPY more link/\n"
        ),
        command="ls real; readlink link",
        prints="f\nmore\nreal\n",
        files={"more": ""},
    ),
}
