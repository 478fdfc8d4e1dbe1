"""`planq agents`, `submit --agent` and `status --tree`: what is read, sent, printed, and how it ends."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import Result

from planq.api.agents.commands import prepare
from planq.api.jobs.commands.progress import draw
from tests.support.recorder import Recorder

ID = "01a1fc26-aa7a-7082-9f4d-2dd23711ed45"
ESCAPE = "\x1b]0;owned\x07[red]"

Planq = Callable[..., Result]


@pytest.fixture
def team(tmp_path: Path) -> Path:
    """Two agents and two skills, beside files that are none."""
    (tmp_path / "skills" / "tables").mkdir(parents=True)
    (tmp_path / "writer.yaml").write_text("name: writer\nskills: [style]\n")
    (tmp_path / "critic.json").write_text('{"name": "critic"}')
    (tmp_path / "skills" / "style.md").write_text("Be brief.")
    (tmp_path / "skills" / "tables" / "SKILL.md").write_text("Draw tables.")
    (tmp_path / "README.md").write_text("no skill")
    (tmp_path / "notes.txt").write_text("no agent")
    return tmp_path


def job(**fields: Any) -> dict[str, Any]:
    return {
        "id": ID,
        "status": "completed",
        "outcome": "succeeded",
        "input": "hello",
        "answer": "done",
        "error": None,
        "plan": None,
        "steps": [],
        "model_calls": 1,
        "usage": {"input_tokens": 3, "output_tokens": 4, "cost_usd": 0.25},
        "created_at": "2026-01-01T00:00:00+00:00",
        "finished_at": "2026-01-01T00:00:02.500000+00:00",
        **fields,
    }


def step(index: int, **fields: Any) -> dict[str, Any]:
    return {"index": index, "tool_name": f"tool_{index}", "status": "succeeded", "error": None, **fields}


def child(job_id: str, index: int, **fields: Any) -> dict[str, Any]:
    return {"id": job_id, "step_index": index, "position": 0, "key": None, "status": "completed", **fields}


def test_apply_sends_skills_first_and_says_what_is_new(planq: Planq, server: Recorder, team: Path) -> None:
    server.answer(201, {"version": 1})
    server.answer_in_turn("/agents/critic", {"version": 4})

    result = planq("agents", "apply", str(team))

    assert result.exit_code == 0, result.stderr
    assert result.stdout.splitlines() == [
        "skill style version 1",
        "skill tables version 1",
        "agent critic version 4 (unchanged)",
        "agent writer version 1",
    ]
    sent = [(method, path, headers["content-type"]) for method, path, headers, _ in server.asked]
    assert sent == [
        ("PUT", "/skills/style", "text/markdown"),
        ("PUT", "/skills/tables", "text/markdown"),
        ("PUT", "/agents/critic", "application/json"),
        ("PUT", "/agents/writer", "application/yaml"),
    ]
    assert server.asked[-1][3] == b"name: writer\nskills: [style]\n"
    items = json.loads(planq("agents", "apply", str(team / "skills" / "style.md"), "--json").stdout)["items"]
    assert items == [
        {"kind": "skill", "name": "style", "version": 1, "is_new": True, "file": "style.md", "warnings": []}
    ]


def test_apply_tells_what_the_documents_name_in_vain(planq: Planq, server: Recorder, team: Path) -> None:
    def warned(code: str, name: str) -> dict[str, str]:
        return {"path": "/tools/0", "code": code, "name": name, "message": f"no {name}{ESCAPE}"}

    server.answer(201, {"version": 1})
    told = [warned("tool_missing", "saerch"), warned("agent_missing", "writer"), warned("agent_missing", "ghost")]
    server.answer_in_turn("/agents/critic", {"version": 1, "warnings": told})

    result = planq("agents", "apply", str(team))

    assert result.exit_code == 0
    lines = result.stderr.splitlines()
    assert [line.split("\ufffd")[0][:50] for line in lines] == [line[:50] for line in lines]
    assert [line.split(": ")[:3] for line in lines] == [["warning", "critic.json", "/tools/0"]] * 2
    assert "no saerch" in lines[0]
    assert "no ghost" in lines[1]
    assert "\x1b" not in result.stderr


def test_every_mistake_is_told_by_file_and_line_and_nothing_is_sent(
    planq: Planq, server: Recorder, team: Path
) -> None:
    (team / "broken.yaml").write_text("name: broken\ntemperature: hot\nstructured_output: true\n")
    (team / "twice.yml").write_text("name: writer\n")
    (team / "skills" / "empty.md").write_text("  \n")
    (team / "syntax.yaml").write_text("name: [\n")

    result = planq("agents", "apply", str(team))
    told = json.loads(planq("agents", "apply", str(team), "--json").stdout)["error"]

    lines = result.stderr.splitlines()
    assert result.exit_code == 1
    assert [line.split(": ")[0] for line in lines] == [
        "broken.yaml:2",
        "broken.yaml:3",
        "syntax.yaml:2",
        "writer.yaml",
        "skills/empty.md",
    ]
    assert "stands in twice.yml already" in result.stderr
    assert [one["line"] for one in told["errors"]] == [2, 3, 2, None, None]
    assert server.asked == []


def test_what_holds_no_agent_and_no_skill_is_said_so(planq: Planq, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("x")
    (tmp_path / "notes.txt").write_text("x")

    folder, file = planq("agents", "apply", str(tmp_path)), planq("agents", "apply", str(tmp_path / "notes.txt"))

    assert (folder.exit_code, file.exit_code) == (1, 1)
    assert "there is no agent" in folder.stderr
    assert "notes.txt: expected .yaml" in file.stderr


def test_links_out_of_the_folder_are_refused(tmp_path: Path) -> None:
    (tmp_path / "outside.yaml").write_text("name: outside\n")
    (tmp_path / "team").mkdir()
    (tmp_path / "team" / "link.yaml").symlink_to(tmp_path / "outside.yaml")

    ready, defects = prepare([tmp_path / "team"])

    assert (list(ready), [one.render() for one in defects]) == (
        [],
        ["link.yaml: a link that leads out of the folder"],
    )


def test_the_apis_own_refusal_names_the_place(planq: Planq, server: Recorder, team: Path) -> None:
    errors = [{"path": "/model", "line": 3, "message": f"unknown {ESCAPE}"}]
    server.answer(422, {"title": "Unprocessable", "detail": "no", "code": "invalid_request", "errors": errors})

    result = planq("agents", "apply", str(team / "writer.yaml"))

    assert result.exit_code == 1
    assert "- line 3, /model: unknown ]0;owned[red]" in result.stderr


def test_list_show_and_delete(planq: Planq, server: Recorder) -> None:
    agent = {"name": "writer", "version": 2, "description": f"Writes {ESCAPE}", "output_mode": "object"}
    agent |= {"tools": ["search"], "skills": ["style"], "actions": []}
    server.answer_in_turn("/agents", {"items": [agent], "next_cursor": "writer"}, {"items": [], "next_cursor": None})
    skill = {"name": "style", "version": 1, "characters": 9}
    server.answer_in_turn("/skills", {"items": [skill], "next_cursor": None})
    stored = {"document": {"name": "writer", "x": "Grüße\x1b"}, "version": 2, "created_at": "now", "retired_at": None}
    server.answer_in_turn("/agents/writer", stored)
    server.answer_in_turn("/skills/style", b"Be brief.\x1b[2J")

    listed = planq("agents", "list").stdout.splitlines()
    assert listed == [
        "agent  writer  version 2  structured    search, skill style  Writes ]0;owned[red]",
        "skill  style   version 1  9 characters",
    ]
    assert planq("agents", "show", "writer").stdout.startswith("name: writer\n")
    assert planq("agents", "show", "style", "--skill", "--version", "1").stdout == "Be brief.[2J\n"
    assert server.asked[-1][1] == "/skills/style?version=1"
    assert planq("agents", "delete", "a/b").stdout == "agent a/b retired\n"
    assert server.asked[-1][:2] == ("DELETE", "/agents/a%2Fb")
    assert planq("agents", "delete", "x", "--skill").exit_code == 0
    assert server.asked[-1][:2] == ("DELETE", "/skills/x")


def test_submit_names_the_agent_its_action_and_what_it_gets(planq: Planq, server: Recorder, tmp_path: Path) -> None:
    server.answer(202, job(status="queued"))
    (tmp_path / "given.json").write_text('{"topic": "leases"}')

    by_file = planq("submit", "--agent", "a", "--action", "b", "--with", f"@{tmp_path / 'given.json'}", "--no-wait")
    by_text = planq("submit", "do it", "--agent", "a", "--with", '{"n": 1}', "--no-wait")
    by_stdin = planq("submit", "x", "--agent", "a", "--with", "@-", "--no-wait", given='{"n": 2}')

    assert (by_file.exit_code, by_text.exit_code, by_stdin.exit_code) == (0, 0, 0)
    assert [asked[3] for asked in server.asked] == [
        {"agent": "a", "action": "b", "with": {"topic": "leases"}},
        {"input": "do it", "agent": "a", "with": {"n": 1}},
        {"input": "x", "agent": "a", "with": {"n": 2}},
    ]


def test_submit_sends_a_context_as_it_is_or_from_a_file(planq: Planq, server: Recorder, tmp_path: Path) -> None:
    server.answer(202, job(status="queued"))
    (tmp_path / "rules.txt").write_text("Prices are net.\n")

    assert planq("submit", "x", "--context", "{a}", "--no-wait").exit_code == 0
    assert planq("submit", "x", "--context", f"@{tmp_path / 'rules.txt'}", "--no-wait").exit_code == 0

    assert [asked[3]["context"] for asked in server.asked] == ["{a}", "Prices are net.\n"]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["submit", "--agent", "a"], 2, "--agent with --action"),
        (["submit", "-", "--agent", "a", "--with", "@-"], 2, "cannot both come from standard input"),
        (["submit", "-", "--context", "@-"], 2, "cannot both come from standard input"),
        (["submit", "x", "--context", "@no/such"], 2, "--context: cannot read 'no/such'"),
        (["submit", "x", "--agent", "a", "--with", "{"], 1, "--with: expected JSON"),
        (["submit", "x", "--agent", "a", "--with", '{"b": 1, "b": 2}'], 1, "/b stands there more than once"),
        (["submit", "x", "--agent", "a", "--with", "@no/such"], 2, "--with: cannot read 'no/such'"),
    ],
)
def test_wrong_usage_is_said_and_nothing_is_sent(
    planq: Planq, server: Recorder, arguments: list[str], code: int, said: str
) -> None:
    result = planq(*arguments)

    assert result.exit_code == code
    assert said in result.stderr
    assert server.asked == []


def test_the_tree_shows_who_does_what_how_long_and_at_what_cost(planq: Planq, server: Recorder) -> None:
    plan, reader, critic = (ID[:-1] + digit for digit in "abc")
    agent = {"name": f"reader{ESCAPE}", "version": 3}
    server.answer_in_turn(
        f"/jobs/{ID}",
        job(agent={"name": "editor", "version": 1}, steps=[step(0), step(1)], children=[child(plan, 0)]),
    )
    children = [child(reader, 0, key="facts"), child(critic, 0, key="doubts"), child(reader, 7)]
    failed = step(0, status="failed", error={"code": "x", "message": "y\nz"})
    failed |= {"started_at": "2026-01-01T00:00:00+00:00", "finished_at": "2026-01-01T00:00:01+00:00"}
    server.answer_in_turn(
        f"/jobs/{plan}", job(id=plan, parent={"job_id": ID, "step_index": 0}, steps=[failed], children=children)
    )
    chained = {"tool_name": "save_moments", "call_id": "1", "error": {"code": "tool_error", "message": "no"}}
    server.answer_in_turn(f"/jobs/{reader}", job(id=reader, agent=agent, chained=chained))
    server.answer_in_turn(f"/jobs/{critic}", job(id=critic, status="cancelled", model_calls=0))

    result = planq("status", ID, "--tree")

    assert result.stdout.splitlines() == [
        f"editor v1 completed, 2.50 s, 1 model call, 0.2500 USD  {ID}",
        "├── $0 tool_0 succeeded",
        f"│   └── agents completed, 2.50 s, 1 model call, 0.2500 USD  {plan}",
        "│       ├── $0 tool_0 failed, 1.00 s  x: y z",
        f"│       │   ├── facts: reader]0;owned[red] v3 completed, 2.50 s, 1 model call, 0.2500 USD  {reader}"
        "  then save_moments failed: tool_error: no",
        f"│       │   └── doubts: job cancelled, 2.50 s, 0.2500 USD  {critic}",
        f"│       └── reader]0;owned[red] v3 completed, 2.50 s, 1 model call, 0.2500 USD  {reader}"
        "  then save_moments failed: tool_error: no",
        "└── $1 tool_1 succeeded",
        "5 jobs, 4 model calls, 15 + 20 tokens, 1.2500 USD",
    ]
    nested = json.loads(planq("status", ID, "--tree", "--json").stdout)
    assert nested["children"][0]["job"]["children"][1]["job"]["status"] == "cancelled"


def test_the_tree_tells_how_long_what_runs_has_been_running_and_folds_at_the_terminals_edge() -> None:
    tree = draw(job(status="executing", finished_at=None), datetime(2026, 1, 1, 0, 0, 9, tzinfo=UTC))
    told = StringIO()

    Console(file=told, width=40).print(tree)

    assert told.getvalue().splitlines()[0] == "job executing, 9 s so far, 1 model call,"
    assert ID in told.getvalue()


def test_the_tree_has_a_branch_for_each_of_several_rounds() -> None:
    rounds = [{"round": 0, "source": "model"}, {"round": 1, "source": "chained"}]
    steps = [{"index": index, "round": index, "tool_name": "a", "status": "succeeded"} for index in (0, 1)]

    tree = draw(job(rounds=rounds, steps=steps))

    assert [str(trunk.label) for trunk in tree.children] == ["plan", "round 1: the chained tool"]
    assert [[str(step.label) for step in trunk.children] for trunk in tree.children] == [
        ["$0 a succeeded"],
        ["$1 a succeeded"],
    ]
    assert [str(step.label) for step in draw(job(rounds=rounds[:1], steps=steps[:1])).children] == ["$0 a succeeded"]


def test_waiting_for_the_tree_long_polls_to_the_end(planq: Planq, server: Recorder) -> None:
    server.answer_in_turn(
        f"/jobs/{ID}", job(status="executing"), job(status="executing"), job(status="failed", outcome="failed")
    )

    result = planq("status", ID, "--tree", "--wait")

    assert (result.exit_code, [asked[1] for asked in server.asked]) == (
        1,
        [f"/jobs/{ID}", f"/jobs/{ID}?wait=20.0", f"/jobs/{ID}?wait=20.0"],
    )
