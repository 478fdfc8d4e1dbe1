"""Every field of a request reaches the jobs that are made from it again, field by field of the request models.

A field that is added to a model has no sample here and fails, until whoever adds it has seen to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from planq.api.schemas import BudgetRequest, JobRequest, LimitsRequest
from planq.shared.agentic.plan.compile import compile_plan
from planq.shared.agentic.plan.document import Plan
from planq.shared.agentic.references.resolution import as_called
from planq.shared.agentic.rounds.block import LoopBlock, merged
from planq.shared.client.requests import JobFields
from planq.shared.kernel.new_ids import new_id
from planq.shared.kernel.states import JobStatus
from planq.shared.kernel.store.transitions import PostgresJobStore
from planq.shared.kernel.tables import Job
from planq.shared.platform.database import Database
from planq.shared.settings.settings import Settings
from tests.integration.api import control
from tests.integration.api.conftest import Api
from tests.integration.api.test_pages import post, visit
from tests.support.claiming import claim_stage
from tests.support.pictures import PNG, base64_of
from tests.support.servers import TestPostgres

PLAN = control.plan(control.call("look", "a"))
BLOCK: dict[str, Any] = {
    "max_rounds": 2,
    "timeout_seconds": 60,
    "prompt": {"text": "Plan for {{query}}."},
    "tools": {"allow": ["look", "mail"], "block": ["mail"]},
    "policy": {"mail": "deny"},
    "guard": {"consecutive_limit": 3},
    "until": ["round >= `2`"],
    "after": [{"tool": "look", "with": {"text": "x"}}],
    "on_error": [{"then": "abort"}],
    "vars": {"a": 1},
    "planner": "lookup",
}
LIMITS: dict[str, Any] = {
    "max_tool_steps": 2,
    "max_plan_steps": 2,
    "max_rounds": 2,
    "loop_timeout_seconds": 50.0,
    "plan_timeout_seconds": 40.0,
    "step_timeout_seconds": 30.0,
    "queue_timeout_seconds": 60.0,
    "job_timeout_seconds": 90.0,
    "human_wait_seconds": 20.0,
    "orchestrate_max_depth": 1,
    "orchestrate_max_steps": 1,
    "orchestrate_max_parallel": 1,
    "agent_timeout_seconds": 10.0,
    "budget": {"max_tokens": 9},
}
BUDGET: dict[str, Any] = {
    "max_tokens": 9,
    "max_cost_usd": 0.5,
    "max_model_calls": 4,
    "max_steps": 5,
    "soft": 0.5,
    "ask": True,
}
ASKED = {"input": "report"}
TO_AGENT = {**ASKED, "agent": "clerk"}
CONVERSATION = "?"

BASES: dict[str, dict[str, Any]] = {
    "loop": {**ASKED, "strategy": "loop"},
    "respond": {**ASKED, "plan": PLAN},
    "action": TO_AGENT,
    "with": TO_AGENT,
    "conversation": {**ASKED, "conversation_id": CONVERSATION},
}
"""The request to which a field is added, `ASKED` where none is named."""

SAMPLES: dict[str, Any] = {
    "input": "another one",
    "strategy": "loop",
    "priority": "bulk",
    "loop": BLOCK,
    "plan": PLAN,
    "respond": "none",
    "model": "openai:gpt-5-mini",
    "on_incomplete": "fail",
    "model_settings": {"temperature": 0.2, "extra_body": {"top_k": None}},
    "tools": ["look"],
    "user": "ann",
    "metadata": {"who": "me"},
    "limits": LIMITS,
    "agent": "clerk",
    "action": "sum",
    "with": {"n": 1},
    "context": "what is known",
    "callback_url": "https://example.org/told",
    "conversation_id": CONVERSATION,
    "conversation": "read",
}
WITH_PARTS = [
    {"type": "text", "text": "report"},
    {"type": "image", "data": base64_of(PNG), "filename": "dot.png"},
    {"type": "file", "url": "https://example.org/a.pdf", "media_type": "application/pdf"},
]
FIELDS = [field.alias or name for name, field in JobRequest.model_fields.items()]
_PARTS = (
    *(("limits", name) for name in LimitsRequest.model_fields),
    *(("budget", name) for name in BudgetRequest.model_fields),
    *(("loop", name) for name in LoopBlock.model_fields),
)
CASES = [*((name, "") for name in FIELDS), *_PARTS, ("input", "parts")]

OF_THE_JOB = frozenset(
    name
    for name in (
        *("id", "created_at", "run_at", "wake_at", "expires_at", "trace_id", "forked_from"),  # of itself
        *("status", "round", "after_steps", "on_failure", "rounds_deadline", "stop_reason", "started_at"),  # its way
        *("stage_worker", "stage_attempt", "stage_losses", "stage_retry", "open_steps", "places", "out_steps"),
        *("held_steps", "failed_steps", "halt_index", "wakes", "deadline", "cancel_requested_at", "paused_at"),
        *(
            "open_questions",
            "resumes",
            "answer",
            "output",
            "chained",
            "incomplete",
            "error",
            "model_calls",
            "input_tokens",
        ),
        *(
            "output_tokens",
            "cache_read_tokens",
            "cache_write_tokens",
            "cost_usd",
            "finished_at",
            "is_joined",
            "is_untold",
        ),
        *("idempotency_key", "request_hash"),  # of the sending
        *("parent_job_id", "parent_step_index", "parent_round", "child_position", "child_key"),  # of its parent
        *("root_job_id", "depth", "batch_id", "batch_line"),
    )
)
"""Columns of a job that its request does not say; each other column has to be equal."""


@pytest.fixture(scope="module")
def api(postgres: TestPostgres, api_valkey: str) -> Iterator[Api]:
    """An application with an agent, a planner and a key for webhooks."""
    url = postgres.create_migrated()
    api = Api(Settings(database_url=url, broker_url=api_valkey, secret_keys="A" * 43 + "="))
    api.jobs.configure()
    control.publish(api, control.TOOLS)
    api.start()
    api.jobs.register_worker(planners=["lookup"])
    agent = {"name": "clerk", "actions": {"sum": {"prompt": "Sum."}}}
    api.http.put("/agents/clerk", json=agent).raise_for_status()
    yield api
    api.stop()
    postgres.drop(url)


def asked_with(api: Api, field: str, part: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a request without a field and one with it, or with a part of it."""
    if field == "budget":
        base, value = ASKED, {"limits": {"budget": {part: BUDGET[part], "max_steps": BUDGET["max_steps"]}}}
    elif field == "limits" and part:
        base, value = ASKED, {"limits": {part: LIMITS[part]}}
    elif field == "input" and part:
        base, value = {"input": "report", "model": "openai:gpt-5-mini"}, {"input": WITH_PARTS}
    elif part:
        base, value = BASES[field], {field: {part: BLOCK[part]}}
    else:
        base, value = BASES.get(field, ASKED), {field: SAMPLES[field]}
    made = [api.http.post("/conversations", json={}).json()["id"] for _ in range(2)]
    without, with_it = (
        {name: conversation if given == CONVERSATION else given for name, given in body.items()}
        for conversation, body in zip(made, (base, {**base, **value}), strict=True)
    )
    return without, with_it


def stored(api: Api, job_id: str) -> dict[str, Any]:
    """Return what the request of a job says, as it is stored."""
    (row,) = api.jobs.execute("SELECT j.* FROM jobs j WHERE j.id = %s", job_id)
    plans = api.jobs.execute("SELECT source, body FROM plans WHERE job_id = %s AND source = 'caller'", job_id)
    return {**{name: value for name, value in row.items() if name not in OF_THE_JOB}, "plans": plans}


def test_what_is_no_part_of_a_request_is_a_column() -> None:
    assert set(Job.__table__.columns.keys()) >= OF_THE_JOB  # type: ignore[attr-defined]


@pytest.mark.parametrize(("field", "part"), CASES)
def test_a_job_that_is_run_again_has_every_field_of_its_request(api: Api, field: str, part: str) -> None:
    without, with_it = asked_with(api, field, part)
    source = api.submit(with_it)["id"]
    if (field, part) != ("budget", "max_steps"):
        assert stored(api, api.submit(without)["id"]) != stored(api, source), "the sample changes nothing"

    with visit(api) as browser:
        page = post(browser, f"/ui/jobs/{source}/again", {})

    again = page.url.path.rpartition("/")[2]
    assert (page.status_code, again != source) == (200, True)
    assert stored(api, again) == stored(api, source)


def accepted(api: Api, job_id: str) -> None:
    """Accept the plan of a job, as if its planner had made it where it has none."""

    async def work(database: Database) -> None:
        store = PostgresJobStore(database, new_id(), as_called)
        claim = await claim_stage(store, UUID(job_id), [JobStatus.QUEUED])
        assert claim is not None
        compiled = compile_plan(Plan.model_validate(PLAN), {one.name: one for one in control.TOOLS})
        source = "caller" if claim.plan_body else "model"
        assert (await store.accept_plan(claim, source, PLAN, compiled.steps, [])).applied

    api.jobs.run(work)


@pytest.mark.parametrize(("field", "part"), CASES)
def test_a_fork_has_every_field_of_its_sources_request(api: Api, field: str, part: str) -> None:
    """It is no turn of a conversation, but is shown what its source was shown of one."""
    source = api.submit(asked_with(api, field, part)[1])["id"]
    accepted(api, source)

    fork = api.http.post(f"/jobs/{source}/fork", json={"plan": PLAN})

    assert fork.status_code == 202, fork.text
    new, old = stored(api, fork.json()["id"]), stored(api, source)
    assert new.pop("plans")[0]["source"] == "caller"
    del old["plans"]
    if (conversation := old["conversation_id"]) is not None:
        old |= {"conversation_id": None, "in_message_flow": False}
        old["history"] = {"of": str(conversation), "form": "full", "before": 1}
    assert new == old


def test_a_job_without_a_text_is_run_again(api: Api) -> None:
    source = api.submit({"plan": PLAN})["id"]
    with visit(api) as browser:
        assert "Run again" in browser.get(f"/ui/jobs/{source}").text
        again = post(browser, f"/ui/jobs/{source}/again", {}).url.path.rpartition("/")[2]
    assert stored(api, again) == stored(api, source)


def test_a_child_job_is_not_run_again(api: Api) -> None:
    parent = control.begun(api, control.call("look"))
    (child, _) = parent.delegate(0, 2)
    with visit(api) as browser:
        refused = post(browser, f"/ui/jobs/{child.id}/again", {})
    assert (refused.status_code, f"is a child of job {parent.id}" in refused.text) == (409, True)


@pytest.mark.parametrize("name", LoopBlock.model_fields)
def test_a_merged_block_has_every_field_of_both(name: str) -> None:
    block = LoopBlock.model_validate({name: BLOCK[name]})
    assert merged(block, LoopBlock()) == block
    assert merged(LoopBlock(), block) == block


def test_the_client_takes_every_field_of_a_request() -> None:
    # The client sends attachments as parts of the input.
    assert {"input", *JobFields.__annotations__} == {"attachments", *JobRequest.model_fields}
