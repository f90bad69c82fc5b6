"""Prompts and limits from a YAML file in mini-swe-agent's format."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hone.agents import ScaffoldError, load_scaffold, make_agent
from hone.agents.scaffold import SUBMIT, SUBMIT_1, Mode
from hone.agents.settings import BashAgentSettings
from tests.agents.settings import agent_settings

ONE = """
agent:
  system_template: You work in bash.
  instance_template: "{{task}} in {{cwd}} on {{machine}}"
  action_observation_template: "{{output.returncode}}: {{output.output}}"
  format_error_template: "found {{actions|length}}"
  timeout_template: "{{action['action']}} was too slow: {{output}}"
  step_limit: 20
  cost_limit: 3.0
environment:
  cwd: /testbed
  timeout: 180
  pull_timeout: 1200
  env: {PAGER: cat, TQDM_DISABLE: 1}
model:
  model_name: some
  model_kwargs: {temperature: 0.0}
"""
TWO = """
agent:
  instance_template: "{{task}}"
  max_consecutive_format_errors: 5
  wall_time_limit_seconds: 60
model:
  action_regex: "```mswea_bash_command\\\\s*\\\\n(.*?)\\\\n```"
  observation_template: "{% if output.exception_info %}{{output.exception_info}}{% endif %}{{output.output}}"
  format_error_template: "{{error}} {% if finish_reason is defined %}{{finish_reason}}{% endif %}"
"""


def _write(folder: Path, text: str) -> str:
    path = folder / "prompts.yaml"
    path.write_text(text)
    return str(path)


def test_keys_of_both_generations_are_read(tmp_path: Path) -> None:
    one = load_scaffold(_write(tmp_path, ONE))
    assert (one.step_limit, one.timeout_s, one.cwd) == (20, 180, "/testbed")
    assert one.env == {"PAGER": "cat", "TQDM_DISABLE": "1"}
    assert one.timeout_template is not None
    assert one.reply("ls") == "```bash\nls\n```"
    assert one.unused == (
        "agent.cost_limit",
        "environment.pull_timeout",
        "model.model_name",
        "model.model_kwargs",
    )
    two = load_scaffold(_write(tmp_path, TWO))
    assert (two.system_template, two.max_consecutive_format_errors, two.wall_time_limit_s) == ("", 5, 60)
    assert two.reply("ls") == "```mswea_bash_command\nls\n```"
    assert two.actions("```mswea_bash_command\nls\n```") == ["ls"]
    assert two.actions("```bash\nls\n```") == []


def test_generations_differ_in_their_rules(tmp_path: Path) -> None:
    one = load_scaffold(_write(tmp_path, ONE))
    assert (one.generation, one.mode, one.submits) == (1, Mode.TEXT, (SUBMIT, SUBMIT_1))
    assert one.actions("```bash\n\nls\n```") == ["ls"]
    two = load_scaffold(_write(tmp_path, TWO))
    assert (two.generation, two.mode, two.submits) == (2, Mode.TEXT, (SUBMIT,))


BARE = """
agent: {system_template: S, instance_template: "{{task}}"}
environment: {interpreter: [bash, -lc]}
model: {observation_template: "{{output.output}}", format_error_template: "{{error}}"}
"""


@pytest.mark.parametrize(
    ("change", "mode"),
    [
        (("", ""), Mode.TOOLS),
        (("model: {", "model: {model_class: litellm, "), Mode.TOOLS),
        (("model: {", "model: {model_class: litellm_textbased, "), Mode.TEXT),
        (("model: {", "model: {action_regex: '<run>(.*?)</run>', "), Mode.TEXT),
        (("_template: S", '_template: "Say:\\n```mswea_bash_command\\nls\\n```"'), Mode.TEXT),
    ],
)
def test_mode_of_a_version_2_file(tmp_path: Path, change: tuple[str, str], mode: Mode) -> None:
    scaffold = load_scaffold(_write(tmp_path, BARE.replace(*change) if change[0] else BARE))
    assert (scaffold.mode, scaffold.interpreter) == (mode, ("bash", "-lc"))
    for kind in ("bash", "oracle"):
        make_agent(agent_settings({"kind": kind, "prompts": str(tmp_path / "prompts.yaml")}))


@pytest.mark.parametrize(
    ("regex", "text"),
    [
        ("<run>(.*?)</run>", "<run>ls -l</run>"),
        (r"```mswea_bash_command\s*\n(.*?)\n```", "```mswea_bash_command\nls -l\n```"),
        (r"```bash[ \t]*\n(.*?)\n```", "```bash\nls -l\n```"),
    ],
)
def test_scripted_reply_has_the_form_of_the_file(tmp_path: Path, regex: str, text: str) -> None:
    path = _write(tmp_path, BARE.replace("model: {", f"model: {{action_regex: '{regex}', "))
    assert load_scaffold(path).reply("ls -l") == text


def test_unwritable_action_form_is_refused(tmp_path: Path) -> None:
    path = _write(tmp_path, BARE.replace("model: {", "model: {action_regex: '[<](run|do)[>]', "))
    with pytest.raises(ScaffoldError, match="does not find the command"):
        load_scaffold(path).reply("ls -l")


@pytest.mark.parametrize("name", ["default", "tiny"])
@pytest.mark.parametrize("kind", ["bash", "oracle", "noop", "demonstrator"])
def test_shipped_prompts_serve_every_agent(name: str, kind: str) -> None:
    make_agent(agent_settings({"kind": kind, "prompts": name}))
    assert load_scaffold(name).unused == ()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("step_limit", "step_limits"), "unknown key 'step_limits'; did you mean 'step_limit'"),
        (("  timeout: 180", "  time_out: 180"), "did you mean 'timeout'"),
        (("environment:", "environments:"), "did you mean 'environment'"),
        (("model:", "model:\n  observation_template: x"), "given twice"),
        (("  instance_template:", "  system_template:"), "missing"),
        (("step_limit: 20", "step_limit: many"), "step_limit must be a number"),
        (("timeout: 180", "timeout: 0"), "must be positive"),
        (("{{output.returncode}}", "{{output.returncode"), "observation_template"),
        (("model:", "model:\n  action_regex: 'x'"), "one group"),
        (("model:", "model:\n  action_regex: '(x'"), "not a regular expression"),
        (("model:", "model:\n  multimodal_regex: x"), "policies here read text only"),
        (("timeout: 180", "timeout: 180\n  interpreter: bash"), "interpreter must be a list of words"),
        ((ONE, "- a list"), "expected the sections"),
        ((ONE, "a: ["), "not YAML"),
        ((ONE, "agent: 3"), "must be a mapping"),
    ],
)
def test_invalid_file_is_refused_with_the_reason(
    tmp_path: Path, change: tuple[str, str], message: str
) -> None:
    with pytest.raises(ScaffoldError, match=message.replace("(", "\\(")):
        load_scaffold(_write(tmp_path, ONE.replace(*change)))


def test_unknown_prompts_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ScaffoldError, match="default, tiny"):
        load_scaffold("tinny")
    with pytest.raises(ScaffoldError, match="cannot read"):
        load_scaffold(str(tmp_path / "none.yaml"))


@pytest.mark.parametrize(
    "template", ["{{task}}", "{{output.returncode}}", "found {{actions|length}}", "was too slow: {{output}}"]
)
def test_undefined_template_variable_is_refused(tmp_path: Path, template: str) -> None:
    path = _write(tmp_path, ONE.replace(template, "{{nothing}}"))
    with pytest.raises(ScaffoldError, match="'nothing' is undefined"):
        make_agent(BashAgentSettings(prompts=path))


def test_settings_override_the_limits_of_the_file(tmp_path: Path) -> None:
    scaffold = load_scaffold(_write(tmp_path, ONE), turn_limit=2, time_limit_s=9.0, command_timeout_s=4.0)
    assert (scaffold.step_limit, scaffold.wall_time_limit_s, scaffold.timeout_s) == (2, 9.0, 4.0)


@given(st.text(st.characters(exclude_characters="`"), min_size=1).filter(lambda text: text.strip()))
def test_command_round_trips_through_a_reply(command: str) -> None:
    scaffold = load_scaffold("tiny")
    assert scaffold.actions(f"I will do this.\n\n{scaffold.reply(command)}\n") == [command.strip()]


@pytest.mark.parametrize(
    ("reply", "actions"),
    [
        ("```bash\nls\n```", ["ls"]),
        ("```bash\nls\nls -l\n```", ["ls\nls -l"]),
        ("```bash  \nls\n```", ["ls"]),
        ("words", []),
        ("```python\nls\n```", []),
        ("```bash\nls", []),
        ("```bash\na\n```\n```bash\nb\n```", ["a", "b"]),
        ("```bash\ncat > x.md <<E\n```python\nx\n```\nE\n```", []),  # its fences would cut the command short
        ("```bash\ncat > x.md <<E\n```\nx\n```\nE\n```", []),
        ("```bash\nls\n```\n\nThat is all.", ["ls"]),
        ("```bash\nls\n``` That is all.", ["ls"]),
        ("```bash\nls\n```\n\nIt will show\n```text\na.py\n```", ["ls"]),
        ("see\n```\nthis\n```\n```bash\nls\n```", ["ls"]),
    ],
)
def test_actions_are_complete_fenced_commands(reply: str, actions: list[str]) -> None:
    assert load_scaffold("default").actions(reply) == actions


@given(
    st.lists(st.sampled_from(["<sh>", "</sh>", "\n", "\n\n", " ", "ls"]), max_size=14).map("".join),
    st.sampled_from([r"<sh>\s*\n(.*?)\n</sh>", r"<sh>(.*?)</sh>", r"<sh>(.*?)(?:</sh>|$)", r"<sh> *(.*?)"]),
)
def test_actions_are_the_matches_of_the_action_regex(reply: str, regex: str) -> None:
    scaffold = replace(load_scaffold("default"), action_regex=regex)
    assert scaffold.actions(reply) == [
        match.group(1).strip() for match in re.finditer(regex, reply, re.DOTALL)
    ]
