"""`planq loops` and `submit --loop`: files with their lines, what is sent, what is written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from typer.testing import Result

from tests.support.recorder import Recorder

BLOCK = "max_rounds: 3\nuntil: round >= `2`\n"
BROKEN = "max_rounds: 0\nuntil: results[\nafter:\n  - tool: a\n    with: {x: '{{ x.__class__ }}'}\n"
WORKFLOW = """\
vars: {iteration: 0}
exec:
  post: {iteration: "${iteration + 1}"}
  goto: {when: iteration < 3, task: loop}
"""

Planq = Callable[..., Result]


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def test_submit_sends_strategy_block_prompt_and_tools(planq: Planq, server: Recorder) -> None:
    Path("loop.yaml").write_text(BLOCK + "prompt: another\n")
    Path("prompt.md").write_text("Plan {{query}}.")
    server.answer(202, {"id": "i", "status": "queued"})
    options = ["--strategy", "loop", "--loop", "loop.yaml", "--prompt-template", "prompt.md"]

    result = planq("submit", "do it", *options, "--tools", "a, b", "--tool", "c", "--no-wait")

    assert result.exit_code == 0, result.output
    ((_, _, _, body),) = server.asked
    assert body == {
        "input": "do it",
        "strategy": "loop",
        "tools": ["c", "a", "b"],
        "loop": {"max_rounds": 3, "until": "round >= `2`", "prompt": {"text": "Plan {{query}}."}},
    }


@pytest.mark.parametrize("command", [["submit", "x", "--strategy", "loop", "--loop"], ["loops", "check"]])
def test_every_defect_of_a_file_has_its_line(planq: Planq, server: Recorder, command: list[str]) -> None:
    Path("loop.yaml").write_text(BROKEN)

    result = planq(*command, "loop.yaml")

    assert result.exit_code == 1
    told = " ".join(result.output.split())
    assert "loop.yaml:1: /max_rounds: Input should be greater than 0" in told
    assert "loop.yaml:2: /until: the expression" in told
    assert "loop.yaml:5: /after/0/with/x: the expression" in told
    assert told.count("Input should be greater than 0") == 1
    assert server.asked == []


def test_broken_yaml_and_templates_have_their_place(planq: Planq) -> None:
    Path("loop.yaml").write_text("until: [\n")
    Path("prompt.md").write_text("{{ query }}")

    assert "loop.yaml:2: not valid YAML" in planq("loops", "check", "loop.yaml").output
    assert "prompt.md: " in planq("submit", "x", "--prompt-template", "prompt.md").output
    assert planq("loops", "check", "nowhere.yaml").exit_code == 2


def test_a_valid_block_is_told_and_shown(planq: Planq) -> None:
    assert planq("loops", "check", "-", given=BLOCK).exit_code == 0
    assert json.loads(planq("loops", "check", "-", "--json", given=BLOCK).stdout)["max_rounds"] == 3


def test_a_workflow_is_imported(planq: Planq) -> None:
    Path("workflow.yaml").write_text(WORKFLOW)

    printed = planq("loops", "import", "workflow.yaml")
    written = planq("loops", "import", "workflow.yaml", "-o", "loop.yaml")

    assert yaml.safe_load(printed.stdout) == {"max_rounds": 3}
    assert written.exit_code == 0, written.output
    assert planq("loops", "check", "loop.yaml").exit_code == 0


def test_what_an_import_needs_and_refuses(planq: Planq) -> None:
    Path("workflow.yaml").write_text("plan:\n  input:\n    promptTemplate: ${mine}\n")
    Path("mine.vm").write_text("Plan $query")

    refused = planq("loops", "import", "workflow.yaml", "-o", "loop.yaml")
    given = planq("loops", "import", "workflow.yaml", "--var", "mine=@mine.vm")

    assert refused.exit_code == 1
    assert "workflow.yaml:3: /plan/input/promptTemplate: nothing sets mine" in " ".join(refused.output.split())
    assert not Path("loop.yaml").exists()
    assert yaml.safe_load(given.stdout) == {"prompt": "Plan {{query}}"}
