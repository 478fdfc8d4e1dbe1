"""Agents and skills over HTTP: versions, every defect at once, retirement, and the jobs that name them."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any

import pytest

from planq.api.agents import routes as routes
from planq.shared.agentic.agents.document import AgentDocument, parse_agent
from tests.integration.api.conftest import Api, problem_of

YAML = {"Content-Type": "application/yaml"}
MARKDOWN = {"Content-Type": "text/markdown"}

RESEARCHER = """\
# comments are not kept
name: {name}
description: You look things up.
x-team: {{b: 1, a: 2}}
skills: [{skills}]
actions:
  find:
    prompt: Find {{{{ topic }}}}
    input_schema:
      type: object
      properties: {{topic: {{type: string}}}}
      required: [topic]
"""

BROKEN = """\
name: broken
description: 7
structured_output: true
temperature: 9
tools:
  - search
  - {description: nameless}
"""


def put(api: Api, name: str, text: str = RESEARCHER, *, skills: str = "") -> dict[str, Any]:
    """Store an agent that must be taken, and return it."""
    response = api.http.put(f"/agents/{name}", content=text.format(name=name, skills=skills), headers=YAML)
    assert response.status_code in (200, 201), response.text
    stored: dict[str, Any] = response.json()
    return stored


def test_an_agent_is_stored_with_versions_and_returned_as_it_was_written(api: Api) -> None:
    path = "/agents/versions"
    text = RESEARCHER.format(name="versions", skills="")
    first = api.http.put(path, content=text, headers=YAML)
    again = api.http.put(path, content=text + "# a remark\n", headers=YAML)
    as_json = api.http.put(path, json=first.json()["document"])
    other = api.http.put(path, content=text.replace("look", "dig"), headers=YAML)

    assert [(one.status_code, one.json()["version"]) for one in (first, again, as_json, other)] == [
        (201, 1),
        (200, 1),
        (200, 1),
        (201, 2),
    ]
    assert other.headers["location"] == "/agents/versions?version=2"
    assert list(first.json()["document"]) == ["name", "description", "x-team", "skills", "actions"]
    assert list(first.json()["document"]["x-team"]) == ["b", "a"]
    stored = [{name: one.json()[name] for name in one.json() if name != "warnings"} for one in (first, other)]
    assert [api.http.get(place).json() for place in (first.headers["location"], path)] == stored


def test_a_document_is_read_beside_the_loop_that_serves_the_others(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[bool] = []

    def watched(body: bytes) -> AgentDocument:
        with suppress(RuntimeError):  # that no loop runs here
            asyncio.get_running_loop()
            read.append(False)
        read.append(True)
        return parse_agent(body)

    monkeypatch.setattr(routes, "parse_agent", watched)

    put(api, "beside")

    assert read == [True]


def test_a_broken_document_is_refused_with_every_defect_and_its_line(api: Api) -> None:
    response = api.http.put("/agents/broken", content=BROKEN, headers=YAML)

    errors = problem_of(response, 422, "invalid_request")["errors"]
    assert [(one["line"], one["path"]) for one in errors] == [
        (2, "/description"),
        (3, "/structured_output"),
        (4, "/temperature"),
        (7, "/tools/1/name"),
    ]
    assert all(one["message"] for one in errors)
    problem_of(api.http.get("/agents/broken"), 404, "not_found")


@pytest.mark.parametrize(
    ("content", "headers", "status", "told"),
    [
        (b"{", {"Content-Type": "application/json"}, 400, "no valid JSON"),
        (b"a: [", YAML, 422, "not valid YAML"),
        (b"", YAML, 422, "an object"),
        (b"- 1", YAML, 422, "an object"),
        (b"name: other", YAML, 422, "expected the same"),
        (b"\xff\xfe", YAML, 422, "UTF-8"),
        (b"description: d", YAML, 422, "name is missing"),
        (b"name: x", MARKDOWN, 415, "application/json or application/yaml"),
        (b"a: &a [1,1]\nb: &b [*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b]\n" * 1, YAML, 422, "name is missing"),
    ],
)
def test_what_is_no_agent_is_refused(
    api: Api, content: bytes, headers: dict[str, str], status: int, told: str
) -> None:
    response = api.http.put("/agents/refused", content=content, headers=headers)

    assert response.status_code == status, response.text
    assert told in response.json()["detail"]


def test_names_that_nobody_offers_are_stored_and_warned_of(api: Api) -> None:
    api.http.put("/skills/known-skill", content="x", headers=MARKDOWN)
    put(api, "known-agent")
    document = {
        "name": "hopeful",
        "tools": ["text_search", {"name": "saerch"}],
        "resources": ["ghost resource"],
        "skills": ["known-skill", "ghost-skill"],
        "agents": ["known-agent", {"name": "ghost-agent"}, "hopeful"],
        "chained_tool": "ghost_tool",
    }

    first, again = (api.http.put("/agents/hopeful", json=document) for _ in range(2))

    assert (first.status_code, again.status_code) == (201, 200)
    assert [(one["path"], one["code"], one["name"]) for one in first.json()["warnings"]] == [
        ("/tools/1", "tool_missing", "saerch"),
        ("/resources", "tool_missing", "ghost_resource"),
        ("/skills/1", "skill_missing", "ghost-skill"),
        ("/chained_tool", "chained_tool_unused", "ghost_tool"),
        ("/chained_tool", "chained_tool_missing", "ghost_tool"),
        ("/agents/1", "agent_missing", "ghost-agent"),
    ]
    assert again.json()["warnings"] == first.json()["warnings"]
    assert "warnings" not in api.http.get("/agents/hopeful").json()
    assert api.http.put("/agents/plain", json={"name": "plain", "tools": ["text.search"]}).json()["warnings"] == []


def test_fields_and_arguments_that_cannot_work_are_warned_of(api: Api) -> None:
    document = {
        "name": "misspelt",
        "structured_outputs": True,
        "customer": "kept without a word",
        "limits": {"request_limits": 3, "most_calls": 2},
        "actions": {"ask": {"promt": "x", "output_schema": {}}},
        "strategy": "loop",
        "loop": {"after": [{"tool": "text_search", "with": {"query": 5}}]},
    }

    warnings = api.http.put("/agents/misspelt", json=document).json()["warnings"]

    assert [(one["path"], one["code"], one["name"]) for one in warnings] == [
        ("/structured_outputs", "field_unknown", "structured_outputs"),
        ("/limits/request_limits", "field_unknown", "request_limits"),
        ("/limits/most_calls", "field_unknown", "most_calls"),
        ("/actions/ask/promt", "field_unknown", "promt"),
        ("/loop/after/0/with/query", "arguments_invalid", "query"),
    ]
    assert "did you mean 'structured_output'?" in warnings[0]["message"]
    assert "known ones are request_limit" in warnings[2]["message"]
    (told,) = api.http.put("/agents/empty", json={"name": "empty", "prompt": "You help."}).json()["warnings"]
    assert (told["path"], told["code"]) == ("", "agent_empty")


def test_what_an_agent_missed_is_shown_with_its_job(api: Api) -> None:
    put(api, "misser")
    job = api.submit({"agent": "misser", "input": "x"})
    other = api.submit({"agent": "misser", "input": "x"})
    for kind, data in (
        ("agent_tools_missing", {"agent": "misser", "tools": ["a", "b"]}),
        ("chained_tool_missing", {"agent": "misser", "tool": "keep"}),
    ):
        api.jobs.execute(
            "INSERT INTO events (tenant_id, job_id, kind, data) VALUES ('default', %s, %s, %s)",
            job["id"],
            kind,
            json.dumps(data),
        )

    warnings = api.http.get(f"/jobs/{job['id']}").json()["warnings"]

    assert [one["code"] for one in warnings] == ["agent_tools_missing", "chained_tool_missing"]
    assert "no worker offers 'a', 'b', listed by agent 'misser'" in warnings[0]["message"]
    assert warnings[1]["details"] == {"agent": "misser", "tool": "keep"}
    assert api.http.get(f"/executions/agents/{job['id']}").json()["warnings"] == warnings
    assert (job["warnings"], api.http.get(f"/jobs/{other['id']}").json()["warnings"]) == ([], [])


def test_a_retired_agent_can_be_looked_at_and_given_no_job(api: Api) -> None:
    put(api, "retiree")

    assert api.http.delete("/agents/retiree").status_code == 204
    assert "is retired" in problem_of(api.http.delete("/agents/retiree"), 404, "not_found")["detail"]
    problem_of(api.http.get("/agents/retiree"), 404, "not_found")
    assert api.http.get("/agents/retiree?version=1").json()["retired_at"] is not None
    problem_of(api.http.post("/jobs", json={"input": "x", "agent": "retiree"}), 404, "not_found")


def test_the_list_pages_by_name(api: Api) -> None:
    for number in range(3):
        put(api, f"listed-{number}")
    found: list[dict[str, Any]] = []
    cursor: str | None = "listed"
    while cursor is not None and not any(one["name"] == "listed-2" for one in found):
        page = api.http.get("/agents", params={"limit": 1, "cursor": cursor}).json()
        found += page["items"]
        cursor = page["next_cursor"]

    assert [one["name"] for one in found] == ["listed-0", "listed-1", "listed-2"]
    assert found[0]["actions"] == ["find"]
    assert (found[0]["output_mode"], found[0]["description"]) == ("text", "You look things up.")
    problem_of(api.http.get("/agents?cursor=%00"), 422, "invalid_request")


def test_a_skill_is_text_with_versions(api: Api) -> None:
    first = api.http.put("/skills/style", content="# Grüße\n", headers=MARKDOWN)
    again = api.http.put("/skills/style", content="# Grüße\n", headers=MARKDOWN)
    second = api.http.put("/skills/style", content="Be brief.", headers=MARKDOWN)

    assert [(one.status_code, one.json()["version"]) for one in (first, again, second)] == [
        (201, 1),
        (200, 1),
        (201, 2),
    ]
    got = api.http.get("/skills/style?version=1")
    assert (got.text, got.headers["content-type"]) == ("# Grüße\n", "text/markdown; charset=utf-8")
    assert api.http.get("/skills/style").headers["planq-version"] == "2"
    assert any(one["name"] == "style" for one in api.http.get("/skills").json()["items"])
    assert api.http.delete("/skills/style").status_code == 204
    problem_of(api.http.get("/skills/style"), 404, "not_found")
    problem_of(api.http.put("/skills/a b", content="x", headers=MARKDOWN), 422, "invalid_request")
    problem_of(api.http.put("/skills/blank", content=" \n", headers=MARKDOWN), 422, "invalid_request")
    problem_of(api.http.put("/skills/blank", json="x"), 415, "unsupported_media_type")


def test_a_job_pins_the_version_of_its_agent_and_of_its_skills(api: Api) -> None:
    api.http.put("/skills/pinned-skill", content="one", headers=MARKDOWN)
    put(api, "pinned", skills="pinned-skill")
    job = api.submit({"agent": "pinned", "input": "x", "with": {"a": [1, None]}})
    put(api, "pinned", RESEARCHER.replace("look", "dig"), skills="pinned-skill")
    api.http.put("/skills/pinned-skill", content="two", headers=MARKDOWN)
    later = api.submit({"agent": "pinned", "action": "find", "with": {"topic": "x"}})

    assert (job["agent"], later["agent"]) == ({"name": "pinned", "version": 1}, {"name": "pinned", "version": 2})
    assert api.http.get(f"/jobs/{job['id']}").json() == job
    assert (job["parent"], job["depth"], job["children"], job["output"], job["chained"]) == (None, 0, [], None, None)
    rows = api.jobs.execute(
        "SELECT skill_versions, action, with_input FROM jobs WHERE id = ANY (%s::uuid[]) ORDER BY id",
        [job["id"], later["id"]],
    )
    assert rows == [
        {"skill_versions": [1], "action": None, "with_input": {"a": [1, None]}},
        {"skill_versions": [2], "action": "find", "with_input": {"topic": "x"}},
    ]


@pytest.mark.parametrize(
    ("body", "status", "told"),
    [
        ({"agent": "nobody", "input": "x"}, 404, "agent 'nobody' does not exist; there are"),
        ({"agent": "a\x00", "input": "x"}, 404, "does not exist"),
        ({"agent": "refuser"}, 422, "input: expected a text"),
        ({"agent": "refuser", "action": "fly", "input": "x"}, 422, "no action 'fly'; it has find"),
        ({"agent": "refuser", "action": "find"}, 422, "with: required but missing: 'topic'"),
        ({"agent": "refuser", "action": "find", "with": {"topic": 7}}, 422, "with/topic"),
        ({"input": "x", "action": "find"}, 422, "action: is only understood together with agent"),
        ({"input": "x", "with": {}}, 422, "with: is only understood together with agent"),
        ({"agent": "refuser", "input": "x", "plan": {"calls": []}}, 422, "an agent or a plan"),
        ({"agent": "refuser", "input": "x", "with_": {}}, 422, "known fields are action, agent"),
        ({"agent": "refuser", "input": "x", "with": {"a": "x" * 100_001}}, 413, "with: expected at most"),
        ({"agent": "skilled", "input": "x"}, 422, "lists skills that are not stored: 'absent-skill'"),
    ],
)
def test_a_job_that_no_agent_could_do_is_refused(api: Api, body: dict[str, Any], status: int, told: str) -> None:
    put(api, "refuser")
    put(api, "skilled", skills="absent-skill")

    response = api.http.post("/jobs", content=json.dumps(body), headers={"Content-Type": "application/json"})

    assert response.status_code == status, response.text
    assert told in response.text


def test_the_agents_model_is_the_jobs_unless_the_request_names_one(api: Api) -> None:
    text = "name: {name}\nmodel: anthropic:claude-x\n"
    put(api, "modelled", text)
    own = api.submit({"agent": "modelled", "input": "x"})
    named = api.submit({"agent": "modelled", "input": "x", "model": "offline"})

    rows = api.jobs.execute(
        "SELECT model FROM jobs WHERE id = ANY (%s::uuid[]) ORDER BY id", [own["id"], named["id"]]
    )

    assert [row["model"] for row in rows] == ["anthropic:claude-x", "offline"]


def test_a_budget_is_stored_with_the_job_and_checked(api: Api) -> None:
    budget = {"max_tokens": 1000, "soft": 0.5, "ask": True}
    job = api.submit({"input": "x", "limits": {"budget": budget, "max_tool_steps": 2}})
    (row,) = api.jobs.execute("SELECT budget, limits->>'max_tool_steps' AS steps FROM jobs WHERE id = %s", job["id"])

    assert row == {"budget": budget, "steps": "2"}
    used = {"tokens": 0, "cost_usd": 0.0, "model_calls": 0, "steps": 0}
    assert job["budget"] == {**budget, "used": used} == api.http.get(f"/jobs/{job['id']}").json()["budget"]
    for wrong in ({"max_tokens": 0}, {"max_model_calls": -1}, {"soft": 1}, {"ask": True}, {}, {"tokens": 1}, 7):
        response = api.http.post("/jobs", json={"input": "x", "limits": {"budget": wrong}})
        problem_of(response, 422, "invalid_request")


def test_every_job_of_a_tree_shows_what_the_whole_tree_has_used_of_its_budget(api: Api) -> None:
    root, child = (api.submit({"input": "x", "limits": {"budget": {"max_cost_usd": 2.5}}})["id"] for _ in range(2))
    of_root = "UPDATE jobs SET parent_job_id = %s, parent_step_index = 0, root_job_id = %s WHERE id = %s"
    api.jobs.execute(of_root, root, root, child)
    api.jobs.execute("UPDATE jobs SET input_tokens = 5, output_tokens = 2, cost_usd = 0.5, model_calls = 1")

    shown = [api.http.get(f"/jobs/{job_id}").json()["budget"] for job_id in (root, child)]

    used = {"tokens": 14, "cost_usd": 1.0, "model_calls": 2, "steps": 0}
    assert shown == [{"max_cost_usd": 2.5, "used": used}] * 2
    assert api.submit({"input": "x"})["budget"] is None
