"""Program files: validation, templates and exit rules."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hone.agents.blackbox import Program, load_program, presets
from hone.agents.blackbox.program import PLACEHOLDERS, fill
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


@pytest.mark.parametrize("name", presets())
def test_presets_load(name: str) -> None:
    program = load_program(name)
    assert program.name == name
    assert program.layer == f"/srv/hone/agents/{name}"


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
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
        ("[run]", '[run]\nprotocol = "acp"', "with the protocol acp an agent ends by its answer"),
        (GOOD[GOOD.index("[[exits]]") :], "", "a command needs exit rules"),
        ('[[exits]]\nending = "turn_limit"', "[[exits", "is not TOML"),
        (
            "[run]",
            '[runtime]\nprogram = "node"\narchive = "https://a/node.tgz"\n[run]',
            "runtime: archive and sha256 must be set together",
        ),
    ],
)
def test_invalid_program_file_is_an_error_in_one_sentence(
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
        ("", "no program named ''; did you mean '"),
        ("qwen-cod", "no program named 'qwen-cod'; did you mean 'qwen-code'?"),
        ("missing/tool.toml", "cannot read the program in missing/tool.toml"),
    ],
)
def test_missing_program_is_an_error(name: str, sentence: str) -> None:
    with pytest.raises(ScaffoldError) as error:
        load_program(name)
    assert sentence in str(error.value)


def test_first_matching_exit_rule_counts(tmp_path: Path) -> None:
    program = load(tmp_path, GOOD)
    assert program.ending(0, "", "") is None
    assert program.ending(53, "no reply", "") is Outcome.TURN_LIMIT
    assert program.ending(0, "", "sorry: no reply today") is Outcome.FORMAT_LIMIT
    assert program.ending(1, "anything", "else") is Outcome.BROKE_SANDBOX


@given(st.integers(-1, 255), st.text(max_size=50), st.text(max_size=50))
def test_no_exit_rule_maps_to_infrastructure(code: int, out: str, err: str) -> None:
    for program in PRESETS:
        ending = program.ending(code, out, err)
        assert ending is None or OUTCOME_RULES[ending].fault is Fault.POLICY


@given(st.text())
def test_placeholder_value_is_never_rendered_as_a_template(text: str) -> None:
    assert fill("<{{ problem }}>", {"problem": text}) == f"<{text}>"


@pytest.mark.parametrize("name", presets())
def test_preset_gets_the_key_and_the_address_of_its_session(name: str) -> None:
    program = load_program(name)
    texts = [*program.run.command, *program.run.env.values(), *(file.text for file in program.files)]
    values = dict.fromkeys(PLACEHOLDERS, "x") | {"max_prompt_tokens": 1, "key": "KEY", "base_url": "URL"}
    filled = [fill(text, values) for text in texts]
    assert any("KEY" in text for text in filled)
    assert any("URL" in text for text in filled)


@pytest.mark.parametrize(("context", "expected"), [(12_288, 12_288), (40_000, 33_000), (131_072, 131_072)])
def test_qwen_code_settings_contain_the_context_length(context: int, expected: int) -> None:
    (file,) = load_program("qwen-code").files
    settings = json.loads(fill(file.text, {"max_prompt_tokens": context}))
    assert settings["model"]["generationConfig"]["contextWindowSize"] == expected
    assert not settings["telemetry"]["enabled"]
