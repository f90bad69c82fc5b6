"""task.toml is read strictly, and what Hone's sandboxes do not have is refused by name."""

from __future__ import annotations

import pytest

from hone.tasks.errors import TaskError
from hone.tasks.harbor import read_task
from hone.tasks.harbor.config import parse_config
from hone.tasks.harbor.folder import pack
from tests.integrations.harbor.folders import config, folder, folders, shell_test

EVERY_FIELD = """
schema_version = "1.4"
source = "somewhere"
multi_step_reward_strategy = "final"
artifacts = ["/app/a.txt", {source = "/app/b", destination = "b", exclude = ["*.o"], service = "main"}]
[metadata]
difficulty = "easy"
[task]
name = "org/name"
version = "1.0.0"
description = "d"
keywords = ["k"]
authors = [{name = "A", email = "a@example.com"}]
[solution]
env = {A = "1"}
[agent]
timeout_sec = 5
user = "root"
network_mode = "allowlist"
allowed_hosts = ["example.com"]
[verifier]
timeout_sec = 6
env = {B = "2"}
user = 0
environment_mode = "separate"
network_mode = "no-network"
[[verifier.collect]]
command = "true"
service = "main"
timeout_sec = 1
user = "root"
[verifier.environment]
docker_image = "x"
[environment]
build_timeout_sec = 1
docker_image = "x"
os = "Linux"
cpus = 0.5
memory_mb = 100
storage_mb = 100
gpus = 1
gpu_types = ["H100"]
tpu = {type = "v6e", topology = "2x2x1"}
mcp_servers = [{name = "m", transport = "stdio", command = "c", args = ["a"]}]
env = {C = "3"}
skills_dir = "/skills"
healthcheck = {command = "true", interval_sec = 1, timeout_sec = 1, start_period_sec = 1, retries = 1}
workdir = "/app"
network_mode = "public"
[[steps]]
name = "one"
min_reward = {reward = 0.5}
agent = {timeout_sec = 1}
verifier = {timeout_sec = 2}
healthcheck = {command = "true"}
artifacts = ["c"]
"""


def refusal(name: str, text: str) -> str:
    """Return why a task with this text in its task.toml is refused; "" when it is served."""
    files = folder(name, ask="Do it.", test=shell_test("true"), solution="true")
    try:
        read_task({**files, "task.toml": pack(text.encode(), executable=False)})
    except TaskError as error:
        return str(error)
    return ""


def test_every_field_of_schema_1_4_is_read() -> None:
    parsed = parse_config(EVERY_FIELD)
    assert parsed.steps is not None
    assert parsed.steps[0].min_reward == {"reward": 0.5}
    assert parsed.environment.os == "linux"
    assert parsed.verifier.mode == "separate"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("schema_version = '2.0'", "`schema_version` Hone reads 1.0 to 1.4, got '2.0'"),
        ("[agent]\ntimeout = 3", "the unknown key `agent.timeout`"),
        ("colour = 'red'", "the unknown key `colour`"),
        ("[environment]\ncpus = 'many'", "`environment.cpus`"),
        ("[task]\nname = 'plain'", "`task.name` must be ORGANISATION/NAME"),
        ("[agent]\nallowed_hosts = ['a.org']", "needs agent.network_mode"),
        ("a = [", "not valid TOML"),
        ("[[steps]]\nname = 'a'\n[[steps]]\nname = 'A'", "two steps have the same name"),
        ("artifacts = ['../x']", "must not contain '..'"),
    ],
)
def test_faulty_configuration_is_refused_in_one_sentence(text: str, said: str) -> None:
    with pytest.raises(TaskError) as refused:
        parse_config(text)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("gpus = 1", "GPUs"),
        ("tpu = {type = 'v6e', topology = '2x2'}", "a TPU"),
        ("os = 'windows'", "Windows"),
        ("mcp_servers = [{name = 'm', url = 'http://x'}]", "MCP servers"),
        ("healthcheck = {command = 'true'}", "a health check"),
        ("skills_dir = '/skills'", "a skills directory"),
        ("env = {KEY = '${SECRET}'}", "environment.env.KEY"),
    ],
)
def test_what_sandboxes_do_not_have_is_refused_by_name(line: str, named: str) -> None:
    assert named in refusal("x", config("x", environment=line))


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"verifier": "user = 'tester'"}, "verifier.user is 'tester'"),
        ({"verifier": "[[verifier.collect]]\ncommand = 'true'"}, "verifier.collect"),
        ({"network": "network_mode = 'allowlist'\nallowed_hosts = ['*.org']"}, "it allows '*.org'"),
        ({"top": "artifacts = ['/etc/passwd']"}, "its result would be /etc/passwd"),
        ({"top": "artifacts = ['/tests/x']"}, "its result would be /tests/x"),
        ({"top": "artifacts = ['/']"}, "its result would be /,"),
        ({"top": "artifacts = [{source = '/data', service = 'db'}]"}, "is of the service 'db'"),
    ],
)
def test_task_that_cannot_be_served_is_refused(parts: dict[str, str], said: str) -> None:
    assert said in refusal("x", config("x", **parts))


def test_compose_is_refused_by_name() -> None:
    files = folder("x", ask="Do it.", test=shell_test("true"), solution="true")
    with pytest.raises(TaskError, match="Docker Compose"):
        read_task({**files, "environment/docker-compose.yaml": pack(b"services: {}", executable=False)})


def test_task_without_a_directory_of_its_own_is_refused() -> None:
    text = config("x").replace('workdir = "/app"\n', "")
    assert "names no directory to work in" in refusal("x", text)


def test_workdir_of_a_dockerfile_is_read() -> None:
    files = folder("x", ask="Do it.", test=shell_test("true"), solution="true")
    text = config("x").replace('workdir = "/app"\n', "").replace('docker_image = "host"\n', "")
    dockerfile = b"FROM debian\nWORKDIR /srv\nRUN true\nWORKDIR work\n"
    task = read_task({
        **files,
        "task.toml": pack(text.encode(), executable=False),
        "environment/Dockerfile": pack(dockerfile, executable=False),
    })  # fmt: skip
    assert (task.workdir, task.roots) == ("/srv/work", ("/srv/work",))
    assert task.image.startswith("dockerfile:")


def test_result_of_a_separate_verifier_is_its_artifacts_alone() -> None:
    task = read_task(folders()["separate-artifact"])
    assert task.roots == ("/app/answer.txt", "/logs/artifacts")


def test_allowlist_becomes_hosts_and_ports() -> None:
    task = read_task(folders()["allowlist-proxy"])
    assert task.network == task.stages[0].network == ("example.com:443", "example.com:80")


def test_files_that_a_step_brings_are_refused() -> None:
    files = {**folders()["steps-mean"], "steps/first/workdir/data.txt": pack(b"x", executable=False)}
    with pytest.raises(TaskError, match="steps/first/workdir"):
        read_task(files)
