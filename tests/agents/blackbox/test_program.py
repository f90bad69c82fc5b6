from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hone.agents.blackbox import Program, load_program, presets
from hone.agents.blackbox.program import fill
from hone.agents.scaffold import ScaffoldError
from hone.outcomes import OUTCOME_RULES, Fault, Outcome

GOOD = """
name = "tool"
wire = "openai"
[install]
kind = "directory"
source = "tools"
[run]
command = ["{{ layer }}/app/tool", "{{ prompt }}"]
prompt = "{{ problem }}"
[[exits]]
ending = "turn_limit"
code = 53
[[exits]]
ending = "format_limit"
output = "no reply"
[[exits]]
ending = "submitted"
code = 0
"""

PRESETS = [load_program(name) for name in presets()]


def load(folder: Path, text: str) -> Program:
    path = folder / "tool.toml"
    path.write_text(text)
    return load_program(str(path))


@pytest.mark.parametrize("name", ["qwen-code", "mini-swe-agent"])
def test_the_programs_that_come_with_hone_can_be_read(name: str) -> None:
    assert name in presets()
    program = load_program(name)
    assert program.name == name
    assert program.layer == f"/srv/hone/agents/{name}"


def test_relative_paths_begin_at_the_file(tmp_path: Path) -> None:
    program = load(tmp_path, GOOD)
    assert program.install.source == tmp_path / "tools"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ('wire = "openai"', 'wire = "openai"\nwires = 1', "unknown key 'wires'; did you mean 'wire'?"),
        ("source =", "sorce =", "unknown key 'install.sorce'; did you mean 'source'?"),
        ("code = 53", "exit_code = 53", "unknown key 'exits.0.exit_code'; did you mean 'code'?"),
        ('prompt = "{{ problem }}"', "", "run.prompt is missing"),
        ('kind = "directory"\n', "", "install.kind must be npm, pip, archive or directory"),
        ('kind = "directory"', 'kind = "brew"', "install.kind must be npm, pip, archive or directory"),
        ('kind = "directory"', 'kind = "npm"', "unknown key 'install.source'; did you mean"),
        ('ending = "submitted"', 'ending = "done"', "exits.2.ending: Input should be 'submitted'"),
        ('output = "no reply"', 'output = "("', "exits.1.output: '(' is not a regular expression"),
        ('name = "tool"', 'name = "../tool"', "name: String should match"),
        ("{{ problem }}", "{{ problm }}", "run.prompt: 'problm' is undefined; the placeholders are problem,"),
        ("{{ layer }}", "{% layer", "run.command[0]: "),
        ('[[exits]]\nending = "turn_limit"', "[[exits", "is not TOML"),
        (
            "[run]",
            '[runtime]\nprogram = "node"\narchive = "https://a/node.tgz"\n[run]',
            "runtime: archive and sha256 must be set together",
        ),
    ],
)
def test_what_is_wrong_with_a_file_is_told_in_one_sentence(
    tmp_path: Path, old: str, new: str, sentence: str
) -> None:
    assert old in GOOD
    with pytest.raises(ScaffoldError) as error:
        load(tmp_path, GOOD.replace(old, new, 1))
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("", "agent.program is empty: set it to mini-swe-agent or qwen-code"),
        ("qwen-cod", "no program named 'qwen-cod'; did you mean 'qwen-code'?"),
        ("missing/tool.toml", "cannot read the program in missing/tool.toml"),
    ],
)
def test_a_program_that_is_not_there_is_told_in_one_sentence(name: str, sentence: str) -> None:
    with pytest.raises(ScaffoldError) as error:
        load_program(name)
    assert sentence in str(error.value)


def test_the_first_exit_that_fits_counts_and_none_is_the_policys_failure(tmp_path: Path) -> None:
    program = load(tmp_path, GOOD)
    assert program.ending(0, "", "") is None
    assert program.ending(53, "no reply", "") is Outcome.TURN_LIMIT
    assert program.ending(0, "", "sorry: no reply today") is Outcome.FORMAT_LIMIT
    assert program.ending(1, "anything", "else") is Outcome.BROKE_SANDBOX


@given(st.integers(-1, 255), st.text(max_size=50), st.text(max_size=50))
def test_no_exit_after_a_reply_is_excused_as_infrastructure(code: int, out: str, err: str) -> None:
    for program in PRESETS:
        ending = program.ending(code, out, err)
        assert ending is None or OUTCOME_RULES[ending].fault is Fault.POLICY


@given(st.text())
def test_what_fills_a_placeholder_is_never_read_as_a_template(text: str) -> None:
    assert fill("<{{ problem }}>", {"problem": text}) == f"<{text}>"


@pytest.mark.parametrize(("context", "told"), [(12_288, 12_288), (40_000, 33_000), (131_072, 131_072)])
def test_the_settings_of_qwen_code_tell_it_the_models_context(context: int, told: int) -> None:
    (file,) = load_program("qwen-code").files
    settings = json.loads(fill(file.text, {"max_prompt_tokens": context}))
    assert settings["model"]["generationConfig"]["contextWindowSize"] == told
    assert not settings["telemetry"]["enabled"]
