"""Loop blocks over HTTP: what a job gets of its agent's and its request's, and what is refused with its place."""

from __future__ import annotations

from typing import Any

import pytest

from planq.shared.agentic.references.resolution import as_called
from planq.shared.kernel.claims import StageClaim
from planq.shared.kernel.new_ids import new_id
from planq.shared.kernel.states import JobStatus, Pool
from planq.shared.kernel.store.transitions import PostgresJobStore
from planq.shared.platform.database import Database
from tests.integration.api.conftest import Api, MakeApi, problem_of
from tests.support.claiming import claim_stage

BLOCK = {
    "max_rounds": 3,
    "until": "round >= `2`",
    "tools": {"block": ["report_write"]},
    "after": [{"tool": "text.search", "with": {"query": "{{ results[-1].result.text }}"}}],
}
AGENT = {"name": "looper", "strategy": "loop", "loop": {**BLOCK, "prompt": "looping", "policy": {"*": "ask"}}}


def claimed(api: Api, job_id: str) -> StageClaim:
    async def work(database: Database) -> StageClaim:
        claim = await claim_stage(PostgresJobStore(database, new_id(), as_called), job_id, [JobStatus.QUEUED])  # type: ignore[arg-type]
        assert claim is not None
        return claim

    found: StageClaim = api.jobs.run(work)
    return found


def with_skill(api: Api, text: str) -> None:
    response = api.http.put("/skills/looping", content=text, headers={"Content-Type": "text/markdown"})
    assert response.status_code in (200, 201)


def test_a_worker_gets_the_block_of_the_request(api: Api) -> None:
    job = api.submit({"input": "a", "strategy": "loop", "loop": BLOCK})

    claim = claimed(api, job["id"])

    assert job["strategy"] == "loop"
    assert claim.loop == {**BLOCK, "until": ["round >= `2`"]}
    assert claim.limits.max_rounds == 3


@pytest.mark.parametrize(
    ("with_", "place"),
    [
        ({"query": 5}, "/after/0/with/query"),
        ({}, "/after/0/with"),
        ({"query": "{{ results }}"}, None),
        ({"query": "\\{{ no expression"}, None),
    ],
)
def test_arguments_of_rules_are_checked_as_far_as_they_are_known(
    api: Api, with_: dict[str, Any], place: str | None
) -> None:
    for rules in ("after", "on_error"):
        body = {"input": "a", "strategy": "loop", "loop": {rules: [{"tool": "text.search", "with": with_}]}}
        answer = api.http.post("/jobs", json=body)
        if place is None:
            assert answer.status_code == 202
        else:
            problem = problem_of(answer, 422, "invalid_request")
            assert [one["path"] for one in problem["errors"]] == [place.replace("after", rules)]


def test_a_planner_is_one_that_a_worker_has(make_api: MakeApi) -> None:
    api = make_api()
    body = {"input": "a", "strategy": "loop", "loop": {"planner": "lokup"}}
    assert api.http.post("/jobs", json=body).status_code == 202, "nobody knows while no worker is there"
    agent = {"name": "planned", "strategy": "loop", "loop": body["loop"]}

    api.jobs.register_worker(Pool.IO, planners=["lookup"])

    problem = problem_of(api.http.post("/jobs", json=body), 422, "invalid_request")
    assert [one["path"] for one in problem["errors"]] == ["/planner"]
    assert "no worker has a planner 'lokup'; did you mean 'lookup'? there are 'lookup'" in problem["detail"]
    (warning,) = api.http.put("/agents/planned", json=agent).json()["warnings"]
    assert (warning["path"], warning["code"]) == ("/loop/planner", "planner_missing")
    problem_of(api.http.post("/jobs", json={"input": "a", "agent": "planned"}), 422, "invalid_request")
    assert api.http.post("/jobs", json={**body, "loop": {"planner": "lookup"}}).status_code == 202


def test_a_job_without_a_block_has_none(api: Api) -> None:
    job = api.submit({"input": "a"})

    assert job["strategy"] == "plan"
    assert claimed(api, job["id"]).loop is None


def test_an_agents_strategy_and_block_are_its_jobs(api: Api) -> None:
    with_skill(api, "Plan {{query}}.")
    api.http.put("/agents/looper", json=AGENT).raise_for_status()

    job = api.submit({"input": "a", "agent": "looper", "loop": {"max_rounds": 2, "policy": {"text_*": "deny"}}})

    claim = claimed(api, job["id"])
    assert job["strategy"] == "loop"
    assert claim.loop is not None
    assert claim.loop["prompt"] == {"name": "looping", "text": "Plan {{query}}."}
    assert claim.loop["policy"] == {"*": "ask", "text_*": "deny"}
    assert (claim.loop["max_rounds"], claim.limits.max_rounds) == (2, 2)


def test_a_request_chooses_another_strategy_than_the_agent(api: Api) -> None:
    with_skill(api, "Plan {{query}}.")
    api.http.put("/agents/looper", json=AGENT).raise_for_status()

    assert api.submit({"input": "a", "agent": "looper", "strategy": "plan"})["strategy"] == "plan"
    assert api.submit({"input": "a", "agent": "looper", "strategy": "react"})["strategy"] == "react"


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("no object", {"loop": "until: x"}, "expected an object with the fields of a loop"),
    ("zero", {"loop": {"max_rounds": 0}}, "/max_rounds: Input should be greater than 0; found 0"),
    ("negative", {"loop": {"timeout_seconds": -1}}, "/timeout_seconds: Input should be greater than 0"),
    ("above the server's", {"loop": {"max_rounds": 1_000}}, "/max_rounds: a request can only lower it"),
    ("deep", {"loop": {"until": "(" * 5000 + "round" + ")" * 5000}}, "/until: the expression has 10005 bytes"),
    ("nested", {"loop": {"until": "(" * 500 + "round" + ")" * 500}}, "/until: the expression"),
    (
        "an attribute",
        {"loop": {"after": [{"tool": "text_search", "with": {"query": "{{ x.__class__ }}"}}]}},
        "/after/0/with/query: the expression",
    ),
    ("a template", {"loop": {"prompt": "{{ query.__class__ }}"}}, "/prompt: "),
    ("no skill", {"loop": {"prompt": "nobody-has-this"}}, "/prompt: expected the name of a stored skill"),
    ("no tool", {"loop": {"after": [{"tool": "text_serch"}]}}, "did you mean 'text_search'?"),
    ("no rounds", {"loop": {"until": "query"}, "strategy": "plan"}, "/until: only a job with rounds has it"),
]


@pytest.mark.parametrize(("fields", "told"), [one[1:] for one in REFUSED], ids=[one[0] for one in REFUSED])
def test_a_broken_block_is_refused_with_its_place(api: Api, fields: dict[str, Any], told: str) -> None:
    response = api.http.post("/jobs", json={"input": "a", "strategy": "loop", **fields})

    problem = problem_of(response, 422, "invalid_request")
    assert problem["detail"].startswith("the loop block is not valid: ")
    assert told in problem["detail"]


def test_an_agent_is_warned_of_what_its_block_names_in_vain(api: Api) -> None:
    loop = {"prompt": "not-there", "tools": {"allow": ["text.search"]}, "on_error": [{"tool": "no_such"}]}

    kept = api.http.put("/agents/hopeful", json={"name": "hopeful", "strategy": "loop", "loop": loop}).json()

    assert [(one["path"], one["code"], one["name"]) for one in kept["warnings"]] == [
        ("/loop/on_error/0/tool", "tool_missing", "no_such"),
        ("/loop/prompt", "skill_missing", "not-there"),
    ]


def test_a_skill_that_is_no_template_is_refused(api: Api) -> None:
    with_skill(api, "Plan {{ query }}.")

    response = api.http.post("/jobs", json={"input": "a", "strategy": "loop", "loop": {"prompt": "looping"}})

    assert "the skill is no prompt template" in problem_of(response, 422, "invalid_request")["detail"]


def test_a_request_cannot_loosen_what_the_agent_says(api: Api) -> None:
    with_skill(api, "Plan {{query}}.")
    api.http.put("/agents/looper", json=AGENT).raise_for_status()

    response = api.http.post("/jobs", json={"input": "a", "agent": "looper", "loop": {"max_rounds": 4}})

    assert "expected at most 3, found 4" in problem_of(response, 422, "invalid_request")["detail"]


def test_an_agent_with_a_broken_block_is_not_stored(api: Api) -> None:
    body = "name: looper\nstrategy: loop\nloop:\n  until: results[\n  max_rounds: 0\n"

    response = api.http.put("/agents/looper", content=body, headers={"Content-Type": "application/yaml"})

    problem = problem_of(response, 422, "invalid_request")
    assert [(one["line"], one["path"]) for one in problem["errors"]] == [(4, "/loop/until"), (5, "/loop/max_rounds")]
