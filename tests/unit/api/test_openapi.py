"""The description of a job's request is as strict as the API where a schema can say it, and no stricter."""

from __future__ import annotations

from typing import Any

import pytest
from jsonschema import Draft202012Validator

from planq.api.app import create_api
from planq.api.schemas import JobRequest
from planq.shared.settings.settings import Settings

PLAN = {"calls": [{"tool_name": "now", "retries": 2.0, "depends_on": []}]}


@pytest.fixture(scope="module")
def described() -> Draft202012Validator:
    settings = Settings(database_url="postgresql://none", broker_url="redis://none", plan_timeout_seconds=10)
    document = create_api(settings).openapi()
    return Draft202012Validator(
        {**document["components"]["schemas"]["JobRequest"], "components": document["components"]}
    )


@pytest.mark.parametrize(
    "body",
    [
        {"input": "a"},
        {"input": "a", "model": "openai:gpt-5.1", "limits": {"max_tool_steps": 3, "plan_timeout_seconds": 9.5}},
        {"plan": PLAN},
        {"agent": "a", "action": "b", "with": {}},
        {"input": "a", "limits": {"budget": {"max_steps": 2.0, "ask": True}}},
        {"input": "a", "agent": None, "with": None, "plan": None},
        {"agent": "a", "input": "b", "action": None},
        {"input": " \n a", "metadata": {"": [2**64 - 1, -(2**63), 0.5, None, {"a": True}]}},
    ],
)
def test_what_the_api_takes_is_described(described: Draft202012Validator, body: dict[str, Any]) -> None:
    assert list(described.iter_errors(body)) == []
    assert JobRequest.model_validate(body)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"input": None},
        {"input": " \n"},
        {"input": "a", "action": "b"},
        {"input": "a", "with": {}},
        {"input": "a", "with": {}, "agent": None},
        {"input": "\x1f\x85\ufeff"},
        {"input": "a\x00b"},
        {"input": "a", "metadata": {"a": [{"b": 2**64}]}},
        {"agent": "a", "action": "b", "with": {"a": -(2**63) - 1}},
        {"plan": {"calls": [{"tool_name": "now", "arguments": {"a": 2**64}}]}},
        {"plan": {"calls": [{"tool_name": "now", "depends_on": [2**64]}]}},
        {"plan": {"calls": [{"tool_name": "now"}] * 10_001}},
        {"input": "a", "limits": {"budget": {}}},
        {"input": "a", "limits": {"budget": {"soft": 0.5, "max_steps": None}}},
        {"agent": "a", "plan": PLAN},
        {"input": "a", "model": "gpt-4o"},
        {"input": "a", "model": "cassette:x"},
        {"input": "a", "model": "google:a//b"},
        {"input": "a", "limits": {"max_tool_steps": 2.5}},
        {"input": "a", "limits": {"max_tool_steps": 11}},
        {"input": "a", "limits": {"plan_timeout_seconds": 10.5}},
        {"plan": {"calls": []}},
    ],
)
def test_what_the_api_refuses_is_not(described: Draft202012Validator, body: dict[str, Any]) -> None:
    assert list(described.iter_errors(body)) != []


def test_operations_are_named_for_those_who_call_them_each_once() -> None:
    document = create_api(Settings(database_url="postgresql://none", broker_url="redis://none")).openapi()
    names = [one["operationId"] for path in document["paths"].values() for one in path.values()]
    assert len(names) == len(set(names))
    assert {"submit_job", "get_job", "list_jobs", "send_message", "submit_batch", "list_agentic_plans"} <= set(names)
    assert [name for name in names if name.startswith(("post_", "put_", "patch_"))] == []
