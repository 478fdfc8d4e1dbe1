"""Generated requests against the description in `/openapi.json`.

There is no 500, every answer is as described, and nothing that the description allows is refused, but for what no
schema can say. The operations are asked for one by one, because schemathesis' own pytest plugin does not know this
pytest. CONTRACT_CASES is the number of requests for each: 14, or 40 with `--whole`, by default.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any
from uuid import UUID

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import text
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from planq.api.intake.message_flow import plan_id_of
from planq.shared.settings.settings import Settings
from tests.integration.api.conftest import SECRET_KEY, Api, search
from tests.support.servers import TestPostgres
from tests.support.tiers import examples

# The API runs in this process: its pool of connections draws when they expire.
pytestmark = pytest.mark.filterwarnings("ignore:Do not use the `random` module inside strategies")

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
    ("GET", "/jobs/{job_id}/why"),
    ("GET", "/jobs/{job_id}/model-calls"),
    ("GET", "/job-counts"),
    ("GET", "/search"),
    ("GET", "/workers"),
    ("POST", "/job-actions"),
    ("GET", "/job-actions"),
    ("GET", "/job-actions/{action_id}"),
    ("POST", "/job-actions/{action_id}/cancel"),
    ("POST", "/jobs/{job_id}/cancel"),
    ("POST", "/jobs/{job_id}/pause"),
    ("POST", "/jobs/{job_id}/resume"),
    ("POST", "/jobs/{job_id}/fork"),
    ("POST", "/jobs/{job_id}/steps/{index}/settle"),
    ("GET", "/jobs/{job_id}/steps/{index}/output"),
    ("GET", "/jobs/{job_id}/steps/{index}/tracebacks"),
    ("GET", "/jobs/{job_id}/steps"),
    ("GET", "/jobs/{job_id}/events"),
    ("GET", "/events"),
    ("GET", "/jobs/{job_id}/artifacts"),
    ("GET", "/jobs/{job_id}/elicitations"),
    ("GET", "/jobs/{job_id}/messages"),
    ("GET", "/conversations"),
    ("POST", "/conversations"),
    ("GET", "/conversations/{conversation_id}"),
    ("GET", "/conversations/{conversation_id}/messages"),
    ("GET", "/conversations/{conversation_id}/events"),
    ("PATCH", "/conversations/{conversation_id}"),
    ("DELETE", "/conversations/{conversation_id}"),
    ("GET", "/elicitations"),
    ("GET", "/elicitations/{elicitation_id}"),
    ("POST", "/elicitations/{elicitation_id}"),
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
    ("POST", "/batches"),
    ("GET", "/batches"),
    ("GET", "/batches/{batch_id}"),
    ("GET", "/batches/{batch_id}/errors"),
    ("POST", "/endpoints"),
    ("GET", "/endpoints"),
    ("GET", "/endpoints/{endpoint_id}"),
    ("PATCH", "/endpoints/{endpoint_id}"),
    ("DELETE", "/endpoints/{endpoint_id}"),
    ("POST", "/endpoints/{endpoint_id}/rotate"),
    ("POST", "/endpoints/{endpoint_id}/test"),
    ("GET", "/webhook-secret"),
    ("POST", "/webhook-secret/rotate"),
    ("GET", "/webhook-secret/inbound"),
    ("POST", "/webhook-secret/inbound/rotate"),
    ("GET", "/deliveries"),
    ("GET", "/deliveries/{delivery_id}"),
    ("POST", "/deliveries/{delivery_id}/redeliver"),
    ("GET", "/channels"),
    ("GET", "/insights"),
    ("DELETE", "/insights"),
    ("GET", "/insights/report"),
    ("GET", "/insights/{insight_id}"),
    ("PATCH", "/insights/{insight_id}"),
    ("DELETE", "/insights/{insight_id}"),
    ("GET", "/jobs/{job_id}/insights"),
    ("GET", "/batches/{batch_id}/results"),
    ("POST", "/batches/{batch_id}/cancel"),
    ("POST", "/batches/{batch_id}/pause"),
    ("POST", "/batches/{batch_id}/resume"),
    ("POST", "/batches/{batch_id}/retry"),
    ("GET", "/costs"),
    ("GET", "/tenants"),
    ("GET", "/tenants/{tenant_id}"),
    ("GET", "/tenants/{tenant_id}/usage"),
    ("GET", "/tenants/{tenant_id}/limits"),
    ("GET", "/tenants/{tenant_id}/channels"),
    ("PUT", "/tenants/{tenant_id}"),
    ("PATCH", "/tenants/{tenant_id}"),
    ("GET", "/tenants/{tenant_id}/keys"),
    ("POST", "/tenants/{tenant_id}/keys"),
    ("DELETE", "/tenants/{tenant_id}/keys/{key_id}"),
    ("GET", "/tools"),
    ("POST", "/plans/validate"),
    ("POST", "/messages/inbound"),
    ("GET", "/messages/status/{job_id}"),
    ("GET", "/plans"),
    ("GET", "/plans/{plan_id}"),
    ("POST", "/plans/{plan_id}/refine"),
    ("GET", "/tasks"),
    ("POST", "/tasks"),
    ("GET", "/tasks/{task_id}"),
    ("POST", "/tasks/{task_id}/resume"),
    ("POST", "/tasks/{task_id}/cancel"),
    ("GET", "/agentic/plans"),
    ("GET", "/agentic/tasks"),
    ("GET", "/artifacts/{artifact_id}"),
    ("GET", "/healthz"),
    ("GET", "/version"),
    ("GET", "/readyz"),
    ("GET", "/metrics"),
]

BOUNDED = settings(
    max_examples=int(os.environ.get("CONTRACT_CASES", examples(40))),
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)

_NOTHING_TO_REFUSE = (("POST", "/webhook-secret/rotate"), ("POST", "/webhook-secret/inbound/rotate"))
REFUSING = [
    one
    for one in OPERATIONS
    if one not in _NOTHING_TO_REFUSE and (one[0] in ("POST", "PUT") or one[1].startswith(("/jobs", "/executions")))
]
"""Those that take something which can be wrong; any text may be the id of an artifact."""

REFUSED = {400, 405, 413, 414, 415, 422, 431}
"""What is answered to a request that is not as it should be; 404 and 409 are about what is stored."""

AGENT = {"name": "generated", "actions": {"act": {}}}
PLAN = {"type": "tool_calls", "calls": [search(), search("{{ $0.output.text }}")]}

KNOWN = {
    "plan": PLAN,
    "tools": ["text_search"],
    "agent": "generated",
    "action": "act",
    "tenant_id": "default",
    "channel": "api",
    "url": "https://example.com/hook",
}
"""What half of the requests name, of the type that was generated, so that they get past what they name."""

BEYOND_SCHEMAS = (
    "context: an agent is given data by",
    "unknown tools ",  # which there are
    "from_step: expected the index of a step of the new plan",  # how many that has
    "the agent's document is not valid: ",  # a language of its own
    "the loop block is not valid: ",  # the same, with expressions
    "the document names itself ",  # as its path does
    "expected integers of at most 64 bits, found ",  # in objects that may hold anything
    "config: Value error, ",  # limits by their names, models by theirs
    *("prompt: ", "budget"),  # of a tenant
    "channel: unknown channel ",  # which the tenant has
    *("metadata: ", "defaults: "),  # JSON in the query
    "model_settings.",  # names that planq writes itself
    *("input.", "content."),  # of parts: one source each, and media types that are known
    "content: ",  # texts of a list that say nothing, and models that read text only
    "conversation: is only understood together with",
    "respond: expected model, or none at all; found ",  # beside an agent
    "metadata.agent: ",  # what somebody else's metadata may hold
    "expected a line for each request",  # not only blank ones
    "from, to: expected at most ",  # which days are far from one another
    "filter.status: expected one that ",  # what an act can change
    *("created_after: ", "created_before: "),  # leap seconds, the first year and the last one
    "tenant: the jobs of another tenant",  # whose key it is
    *("callback_url: ", "url: ", "events: "),  # which addresses are public
    *("after: there is no event ", "Last-Event-ID: there is no event "),  # how far the log goes
)
"""How problems begin which tell of what a schema cannot say."""

BEYOND_SCHEMAS_IN_PLANS = {
    *("unknown_tool", "ambiguous_tool", "invalid_argument"),  # which tools there are, and what they take
    *("invalid_dependency", "dependency_cycle"),  # how calls refer to each other, here and in templates
    *("invalid_template_syntax", "self_reference", "forward_reference", "index_out_of_bounds"),
    *("no_output_schema", "field_not_found", "type_mismatch"),
}


# Bodies that are not JSON are texts here; `binary` tells generators of clients that they are sent as they are.
schemathesis.openapi.format("binary", text())


@schemathesis.serializer("text/markdown", "application/jsonl", "application/x-ndjson")
def as_it_is(_: schemathesis.SerializationContext, value: object) -> bytes:
    """A text as it is; what is generated wrongly, as it prints."""
    return (value if isinstance(value, str) else str(value)).encode("utf-8", "surrogatepass")


@pytest.fixture(scope="session")
def impatient_api(postgres: TestPostgres, api_valkey: str) -> Iterator[Api]:
    """An application that lets nobody wait: no worker ends what is submitted here."""
    url = postgres.create_migrated()
    given = {"max_wait_seconds": 0.05, "max_body_bytes": 2_000_000, "secret_keys": SECRET_KEY}
    api = Api(Settings(database_url=url, broker_url=api_valkey, **given))
    api.jobs.publish_tools()
    api.jobs.configure()
    api.start()
    yield api
    api.stop()
    postgres.drop(url)


@pytest.fixture(scope="session")
def described(impatient_api: Api) -> schemathesis.BaseSchema:
    """The API as it describes itself."""
    return schemathesis.openapi.from_url(f"{impatient_api.url}/openapi.json")


@pytest.fixture
def job_id(impatient_api: Api) -> str:
    """A job that is being executed, for the requests of one test."""
    job_id: str = impatient_api.submit({"plan": PLAN})["id"]
    impatient_api.jobs.run_plan(job_id, PLAN, {0: {"text": "Rust", "count": 1}})
    assert impatient_api.http.put("/agents/generated", json=AGENT).status_code in (200, 201)
    return job_id


@pytest.mark.parametrize(("method", "path"), OPERATIONS, ids=[" ".join(operation) for operation in OPERATIONS])
def test_every_answer_to_a_good_request_is_as_described(
    described: schemathesis.BaseSchema, method: str, path: str, job_id: str
) -> None:
    answers = ask(described, method, path, GenerationMode.POSITIVE, job_id)

    refused = [one.json() for one in answers if one.status_code in REFUSED]
    assert [problem for problem in refused if not is_beyond_schemas(problem)] == []
    # test_jobs.py and test_agents.py have those that are accepted.
    assert {one.status_code for one in answers} & {200, 201, 202, 204, 404}


@pytest.mark.parametrize(("method", "path"), REFUSING, ids=[" ".join(operation) for operation in REFUSING])
def test_every_answer_to_a_bad_request_is_as_described(
    described: schemathesis.BaseSchema, method: str, path: str, job_id: str
) -> None:
    answers = ask(described, method, path, GenerationMode.NEGATIVE, job_id)

    assert {one.status_code for one in answers} & {400, 404, 415, 422}


def ask(
    described: schemathesis.BaseSchema, method: str, path: str, mode: GenerationMode, job_id: str
) -> list[schemathesis.Response]:
    """Send generated requests, every second about what there is; check every answer, and return all."""
    answers: list[schemathesis.Response] = []
    turn = count()

    @given(described[path][method].as_strategy(generation_mode=mode))
    @BOUNDED
    def run(case: schemathesis.Case) -> None:
        wait = (case.query or {}).get("wait")
        if isinstance(wait, (int, float)) and wait > 0:
            case.query = {**case.query, "wait": 0.01}  # nobody ends these jobs
        if path.endswith("/events"):
            case.query = {**(case.query or {}), "follow": "false"}  # so that the answer has an end
        if next(turn) % 2:
            case.path_parameters = replaced(case.path_parameters or {}, ids_in_paths(job_id))
            if mode is GenerationMode.POSITIVE and isinstance(case.body, dict):
                case.body = {**case.body, **AGENT} if path == "/agents/{agent_id}" else replaced(case.body, KNOWN)
        answers.append(case.call_and_validate(checks=CHECKS))

    run()
    return answers


def ids_in_paths(job_id: str) -> dict[str, str]:
    """Return what there is, by the names of the parameters of paths."""
    plan_id = str(plan_id_of(UUID(job_id)))
    return {"job_id": job_id, "task_id": job_id, "plan_id": plan_id, "agent_id": "generated"}


def replaced(given: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """Return `given` with what is known in the place of values of the same type."""
    return {
        name: known[name] if name in known and type(known[name]) is type(one) else one for name, one in given.items()
    }


def is_beyond_schemas(problem: Mapping[str, Any]) -> bool:
    """True for the refusal of what no schema could have said."""
    if problem["code"] == "plan_invalid":
        found = [one["error"] for one in problem["errors"]]
        return all(one["type"] in BEYOND_SCHEMAS_IN_PLANS or is_about_kinds(one) for one in found)
    return problem["detail"].startswith(BEYOND_SCHEMAS)


def is_about_kinds(error: Mapping[str, Any]) -> bool:
    """True for what a call may not have beside its kind, which the description says in words."""
    return error["type"] == "invalid_plan" and " of the kind " in error["message"]


def test_no_operation_is_left_out(described: schemathesis.BaseSchema) -> None:
    known = {(operation.ok().method.upper(), operation.ok().path) for operation in described.get_all_operations()}

    # `/statusz` answers 503 while no worker runs, which is no fault: test_operations looks at it.
    assert known == {*OPERATIONS, ("GET", "/statusz")}
