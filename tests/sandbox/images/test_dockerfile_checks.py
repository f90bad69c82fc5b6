"""What is refused before a build, and how a failed build is explained."""

from __future__ import annotations

import pytest

from hone.sandbox import ImageUnavailable, ProviderUnavailable
from hone.sandbox.images.buildah import explain
from hone.sandbox.images.dockerfile import check
from hone.utils.dockerfile import read_instructions


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("RUN <<EOF\necho hi\nEOF\n", "line 2 of the Dockerfile, `RUN <<EOF`, has a heredoc"),
        ("RUN python3 - <<'EOF'\nprint(1)\nEOF\n", "heredoc"),
        ('COPY <<-"EOF" /a\nx\nEOF\n', "heredoc"),
        ("ONBUILD RUN cat <<EOF\nx\nEOF\n", "heredoc"),
        (
            "VOLUME /data\nRUN touch /data/x\n",
            "line 3 of the Dockerfile, `RUN touch /data/x`, follows VOLUME /data",
        ),
        ("ADD https://a.org/x.tar /x/\n", 'its task is not "public"'),
        ("ADD git@a.org:b.git /x/\n", 'its task is not "public"'),
    ],
)
def test_what_would_be_built_wrongly_is_refused_by_name(text: str, named: str) -> None:
    with pytest.raises(ProviderUnavailable) as raised:
        check(read_instructions(f"FROM a\n{text}"), network=False)
    assert named in str(raised.value)
    assert "\n" not in str(raised.value)
    assert not raised.value.retryable


@pytest.mark.parametrize(
    "text",
    [
        "RUN echo 'a <<EOF' \"b <<EOF\" && echo $((1 << 3)) <<< word\n",
        "RUN true\nVOLUME /data\nWORKDIR /x\nFROM b\nRUN touch /data\n",
        "ADD x.tar /https/\n",
        "CMD cat <<EOF\n",
    ],
)
def test_what_every_builder_knows_is_let_through(text: str) -> None:
    check(read_instructions(f"FROM a\n{text}"), network=False)


def test_remote_file_is_added_where_the_task_has_the_network() -> None:
    check(read_instructions("FROM a\nADD https://a.org/x /x\n"), network=True)


def _output(step: str, reason: str, *said: str) -> str:
    lines = ["STEP 1/2: FROM a", f"STEP 2/2: {step}", *said, f'Error: building at STEP "{step}": {reason}']
    return "\n".join(lines) + "\n"


def test_failed_step_is_named_with_its_last_output() -> None:
    output = _output("RUN make", "while running runtime: exit status 2", "cc x.c", "make: *** [all] Error 1")
    assert str(explain(output, network=False)) == (
        "the image cannot be built: the step `RUN make` fails (while running runtime: exit status 2): "
        "cc x.c make: *** [all] Error 1"
    )


def test_error_that_a_command_prints_is_its_output() -> None:
    output = _output("RUN npm ci", "while running runtime: exit status 1", "Error: no lock file", "bye")
    assert str(explain(output, network=False)).endswith("exit status 1): Error: no lock file bye")


@pytest.mark.parametrize(
    "said",
    [
        "curl: (6) Could not resolve host: a.org",
        "socket.gaierror: [Errno -3] Temporary failure in name resolution",
        "OSError: [Errno 101] Network is unreachable",
        "npm error code EAI_AGAIN",
        "E: Unable to connect to deb.debian.org:http:",
    ],
)
def test_step_that_needs_the_network_says_that_it_has_none(said: str) -> None:
    output = _output("RUN fetch", "while running runtime: exit status 1", said)
    assert 'the network_mode of its task is not "public"' in str(explain(output, network=False))
    assert "network_mode" not in str(explain(output, network=True))


def test_full_disk_is_no_fault_of_the_dockerfile() -> None:
    error = explain(_output("RUN x", "exit status 1", "write: no space left on device"), network=False)
    assert isinstance(error, ImageUnavailable)
    assert error.problem == "disk_full"


def test_error_outside_of_a_step_is_passed_on() -> None:
    message = str(explain("STEP 1/1: FROM a\nError: no FROM statement found\n", network=False))
    assert message == "the image cannot be built: no FROM statement found"
