"""Large outputs over HTTP: a reference in the job's document, the bytes by themselves, in slices, once."""

from __future__ import annotations

import hashlib
import json
import tracemalloc
from typing import Any
from uuid import UUID

import pytest

from planq.shared.agentic.plan.compile import compile_plan
from planq.shared.agentic.plan.document import Plan
from planq.shared.agentic.references.resolution import as_called
from planq.shared.kernel.ids import StepRef
from planq.shared.kernel.job_store import ArtifactRecord, PayloadRecord
from planq.shared.kernel.new_ids import new_id
from planq.shared.kernel.states import JobStatus
from planq.shared.kernel.store.transitions import PostgresJobStore
from planq.shared.platform.database import Database
from planq.shared.platform.values.excerpts import excerpts_json
from planq.shared.subjects.payloads.store import SLICE_BYTES, PayloadStore
from tests.integration.api import control
from tests.integration.api.conftest import TOOLS, Api, problem_of
from tests.support.claiming import claim_stage, claim_step

OUTPUT = {"artifact_id": "large", "artifact": {"text": "x" * (3 * SLICE_BYTES)}, "_metadata": {}, "text": "é"}
BODY = json.dumps(OUTPUT, ensure_ascii=False).encode()
DIGEST = hashlib.sha256(BODY).hexdigest()


def finish_with(api: Api, job_id: str, body: bytes) -> None:
    """Let the first step of a queued job succeed with these bytes as a payload, as a worker does."""
    plan = {
        "calls": [
            {"tool_name": TOOLS[0].name, "arguments": {"query": "q"}},
            {"tool_name": TOOLS[0].name, "arguments": {"query": "$0.output.text"}},
        ]
    }

    async def work(database: Database) -> None:
        store, payloads = PostgresJobStore(database, new_id(), as_called), PayloadStore(database)
        stage = await claim_stage(store, UUID(job_id), [JobStatus.QUEUED])
        assert stage is not None
        compiled = compile_plan(Plan.model_validate(plan), {tool.name: tool for tool in TOOLS})
        await store.accept_plan(stage, "caller", plan, compiled.steps, [])
        step = await claim_step(store, StepRef(UUID(job_id), 0, 0))
        assert step is not None
        digest = await payloads.put("default", body, b'{"value": "shown", "is_whole": false}')
        record = PayloadRecord(digest, len(body), excerpts_json(json.loads(body), step.wanted))
        assert (await store.succeed_step(step, None, ArtifactRecord("large", None, None), record)).applied

    api.jobs.run(work)


@pytest.fixture
def job(api: Api) -> dict[str, Any]:
    """A job whose first step has a large output."""
    job = api.submit()
    finish_with(api, job["id"], BODY)
    return job


def test_the_document_has_a_reference_instead_of_the_output(api: Api, job: dict[str, Any]) -> None:
    response = api.http.get(f"/jobs/{job['id']}")

    assert len(response.content) < 10_000
    step, waiting = response.json()["steps"]
    href = f"/jobs/{job['id']}/steps/0/output"
    assert (step["output"], step["output_ref"]) == (None, {"sha256": DIGEST, "bytes": len(BODY), "href": href})
    assert (waiting["output"], waiting["output_ref"]) == (None, None)


def test_the_bytes_come_as_they_are_stored_in_slices(api: Api, job: dict[str, Any]) -> None:
    with api.http.stream("GET", f"/jobs/{job['id']}/steps/0/output") as response:
        body = response.read()

    assert (response.status_code, response.headers["content-type"]) == (200, "application/json")
    assert (response.headers["etag"], response.headers["content-length"]) == (f'"{DIGEST}"', str(len(BODY)))
    assert response.headers["cache-control"] == "private, no-cache", "no proxy keeps what one tenant may read"
    assert body == BODY


def test_the_api_holds_a_few_slices_at_a_time_however_large_the_output(api: Api) -> None:
    job = api.submit()
    finish_with(api, job["id"], b'{"text": "' + b"y" * (50 * SLICE_BYTES) + b'"}')
    received = 0
    tracemalloc.start()  # the API runs in a thread of this process
    with api.http.stream("GET", f"/jobs/{job['id']}/steps/0/output") as response:
        for piece in response.iter_raw():
            received += len(piece)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert received == 50 * SLICE_BYTES + 12
    assert peak < 15 * SLICE_BYTES


@pytest.mark.parametrize("tags", [f'"{DIGEST}"', f'W/"{DIGEST}"', f'"other", "{DIGEST}"', "*"])
def test_who_has_it_already_gets_304(api: Api, job: dict[str, Any], tags: str) -> None:
    path = f"/jobs/{job['id']}/steps/0/output"
    response = api.http.get(path, headers={"If-None-Match": tags})

    assert (response.status_code, response.content, response.headers["etag"]) == (304, b"", f'"{DIGEST}"')
    assert api.http.get(path, headers={"If-None-Match": '"other"'}).status_code == 200


def test_a_large_artifact_is_the_same_bytes(api: Api, job: dict[str, Any]) -> None:
    response = api.http.get("/artifacts/large")

    assert (response.content, response.headers["etag"]) == (BODY, f'"{DIGEST}"')


def test_a_small_output_can_be_had_by_itself_too(api: Api) -> None:
    job = api.submit()
    plan = {"calls": [{"tool_name": TOOLS[0].name, "arguments": {"query": "q"}}]}
    api.jobs.run_plan(job["id"], plan, {0: {"text": "found"}})

    response = api.http.get(f"/jobs/{job['id']}/steps/0/output")

    assert response.json() == {"text": "found"}
    assert response.headers["etag"] == f'"{hashlib.sha256(response.content).hexdigest()}"'


def test_what_is_not_there_is_told(api: Api, job: dict[str, Any]) -> None:
    unknown = new_id()
    for path, told in {
        f"/jobs/{unknown}/steps/0/output": f"no job {unknown}",
        "/jobs/nonsense/steps/0/output": "job ids are UUIDs",
        f"/jobs/{job['id']}/steps/7/output": "no step 7",
        f"/jobs/{job['id']}/steps/x/output": "numbered from 0",
        f"/jobs/{job['id']}/steps/99999999999999/output": "numbered from 0",
        f"/jobs/{job['id']}/steps/1/output": "it is ready",
    }.items():
        assert told in problem_of(api.http.get(path), 404, "not_found")["detail"]


def test_a_payload_that_cannot_be_read_is_503(api: Api, job: dict[str, Any]) -> None:
    api.jobs.execute("UPDATE payloads SET body = NULL, location = 'aa/x' WHERE hash = %s", bytes.fromhex(DIGEST))
    try:
        problem = problem_of(api.http.get(f"/jobs/{job['id']}/steps/0/output"), 503, "storage_unavailable")
        assert "PLANQ_PAYLOADS" in problem["detail"]
    finally:
        api.jobs.execute(
            "UPDATE payloads SET body = %s, location = NULL WHERE hash = %s", BODY, bytes.fromhex(DIGEST)
        )


def test_a_call_that_the_guard_blocked_shows_the_output_that_its_planner_was_shown(control_api: Api) -> None:
    story = control.begun(control_api, control.call("look"), control.call("look"))
    story.succeed(0)
    story.fail(1, "duplicate_call_blocked")
    assert story.seen()["steps"][1]["output"] is None
    control_api.jobs.execute(
        "UPDATE steps s SET output = o.output FROM steps o "
        "WHERE s.job_id = %s AND s.index = 1 AND o.job_id = s.job_id AND o.index = 0",
        story.id,
    )

    first, second = story.seen()["steps"]

    assert (second["status"], second["output"]) == ("failed", first["output"])
    assert control_api.http.get(f"/jobs/{story.id}/steps/1/output").json() == first["output"]
