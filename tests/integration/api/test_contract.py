"""Generated requests against the description in `/openapi.json`: no 500, and every answer is as described.

The operations are asked for one by one, because schemathesis' own pytest plugin does not know this pytest.
"""

from __future__ import annotations

from itertools import count

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.integration.api.conftest import Api, search

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]

OPERATIONS = [
    ("POST", "/jobs"),
    ("GET", "/jobs"),
    ("GET", "/jobs/{job_id}"),
    ("POST", "/jobs/{job_id}/cancel"),
    ("POST", "/jobs/{job_id}/pause"),
    ("POST", "/jobs/{job_id}/resume"),
    ("POST", "/jobs/{job_id}/fork"),
    ("POST", "/jobs/{job_id}/steps/{index}/settle"),
    ("GET", "/jobs/{job_id}/steps/{index}/output"),
    ("GET", "/agents"),
    ("GET", "/agents/{agent_id}"),
    ("PUT", "/agents/{agent_id}"),
    ("DELETE", "/agents/{agent_id}"),
    ("GET", "/skills"),
    ("GET", "/skills/{skill_id}"),
    ("PUT", "/skills/{skill_id}"),
    ("DELETE", "/skills/{skill_id}"),
    ("POST", "/agents/{agent_id}/executions"),
    ("POST", "/agents/{agent_id}/executions/async"),
    ("GET", "/executions/agents/{exec_id}"),
    ("GET", "/schedules"),
    ("DELETE", "/schedules/{schedule_id}"),
    ("GET", "/tools"),
    ("POST", "/plans/validate"),
    ("GET", "/artifacts/{artifact_id}"),
    ("GET", "/healthz"),
    ("GET", "/metrics"),
]

BOUNDED = settings(
    max_examples=40, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)

REFUSING = [one for one in OPERATIONS if one[0] in ("POST", "PUT") or one[1].startswith(("/jobs", "/executions"))]
"""Those that take something which can be wrong; any text may be the id of an artifact."""

DOUBTFUL = ("/jobs", "/agents/{agent_id}", "/skills/{skill_id}")
"""Here what is well-formed may still be refused: no schema knows which models there are, and what an agent needs."""

AGENT = {"name": "generated", "actions": {"act": {}}}
"""For half of the requests about agents."""


@schemathesis.serializer("text/markdown")
def markdown(_: schemathesis.SerializationContext, value: object) -> bytes:
    """A text as it is; what is generated wrongly, as it prints."""
    return (value if isinstance(value, str) else str(value)).encode("utf-8", "surrogatepass")


@pytest.fixture(scope="session")
def described(shared_api: Api) -> schemathesis.BaseSchema:
    """The API as it describes itself."""
    return schemathesis.openapi.from_url(f"{shared_api.url}/openapi.json")


@pytest.fixture
def job_id(shared_api: Api) -> str:
    """A job that is being executed, for the requests of one test."""
    plan = {"type": "tool_calls", "calls": [search(), search("{{ $0.output.text }}")]}
    job_id: str = shared_api.submit({"plan": plan})["id"]
    shared_api.jobs.run_plan(job_id, plan, {0: {"text": "Rust", "count": 1}})
    assert shared_api.http.put("/agents/generated", json=AGENT).status_code in (200, 201)
    return job_id


@pytest.mark.parametrize(("method", "path"), OPERATIONS, ids=[" ".join(operation) for operation in OPERATIONS])
def test_every_answer_to_a_good_request_is_as_described(
    described: schemathesis.BaseSchema, method: str, path: str, job_id: str
) -> None:
    statuses = ask(described, method, path, GenerationMode.POSITIVE, job_id)

    # test_jobs.py and test_agents.py have those that are accepted.
    assert statuses & ({200, 201, 202, 204, 404} | ({422} if path in DOUBTFUL else set()))


@pytest.mark.parametrize(("method", "path"), REFUSING, ids=[" ".join(operation) for operation in REFUSING])
def test_every_answer_to_a_bad_request_is_as_described(
    described: schemathesis.BaseSchema, method: str, path: str, job_id: str
) -> None:
    statuses = ask(described, method, path, GenerationMode.NEGATIVE, job_id)

    assert statuses & {400, 404, 415, 422}


def ask(described: schemathesis.BaseSchema, method: str, path: str, mode: GenerationMode, job_id: str) -> set[int]:
    """Send generated requests, every second about the job there is; check every answer, and return the statuses."""
    statuses: set[int] = set()
    turn = count()

    @given(described[path][method].as_strategy(generation_mode=mode))
    @BOUNDED
    def run(case: schemathesis.Case) -> None:
        wait = (case.query or {}).get("wait")
        if isinstance(wait, (int, float)) and wait > 0:
            case.query = {**case.query, "wait": 0.01}  # nobody ends these jobs
        known = {"job_id": job_id, "agent_id": "generated"}
        given = {name: value for name, value in known.items() if name in (case.path_parameters or {})}
        if given and next(turn) % 2:
            case.path_parameters = {**case.path_parameters, **given}
        statuses.add(case.call_and_validate(checks=CHECKS).status_code)

    run()
    return statuses


def test_no_operation_is_left_out(described: schemathesis.BaseSchema) -> None:
    known = {(operation.ok().method.upper(), operation.ok().path) for operation in described.get_all_operations()}

    # `/readyz` answers 503 while no worker runs, which is no fault: test_operations looks at it.
    assert known == {*OPERATIONS, ("GET", "/readyz")}
