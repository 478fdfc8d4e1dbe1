"""Parameters that say whom a tool acts for: nobody chooses them, the engine does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from planq.shared.agentic.plan.document import Plan
from planq.shared.agentic.plan.validation import validate_plan
from planq.shared.agentic.tools.contract import ToolContext
from planq.shared.agentic.tools.definition import ToolDefinition
from planq.shared.agentic.tools.scoping import scope_headers, scoped_arguments, unscoped, unscoped_schema

CALL = ToolContext(
    job_id="job-1",
    step_index=0,
    attempt=1,
    tool_name="orders",
    tenant_id="acme",
    user_id="ada",
    context_id="thread-7",
    request_id="job-1",
    trace_id="",
)


@pytest.mark.parametrize(
    ("arguments", "left"),
    [
        ({"customer_id": "CUST-789", "user_id": "USER-456", "invoice_id": "INV-123"}, {"invoice_id": "INV-123"}),
        ({"invoice_id": "INV-123"}, {"invoice_id": "INV-123"}),
        ({"customer_id": None}, {}),
        ({"order": {"customer_id": "CUST-789"}}, {"order": {"customer_id": "CUST-789"}}),
        ({}, {}),
    ],
)
def test_arguments_that_nobody_chooses_are_dropped(arguments: dict[str, Any], left: dict[str, Any]) -> None:
    assert unscoped(arguments, ["customer_id", "user_id"]) == left


def test_a_schema_neither_names_nor_requires_them() -> None:
    schema = {
        "type": "object",
        "properties": {"user_id": {"type": "string"}, "invoice_id": {"type": "string"}},
        "required": ["user_id", "invoice_id"],
        "additionalProperties": False,
    }

    assert unscoped_schema(schema, ["user_id"]) == {
        "type": "object",
        "properties": {"invoice_id": {"type": "string"}},
        "required": ["invoice_id"],
        "additionalProperties": False,
    }


def test_a_plan_that_gives_them_all_the_same_is_valid() -> None:
    schema = {"type": "object", "properties": {"text": {"type": "string"}}, "additionalProperties": False}
    tool = ToolDefinition(name="orders", input_schema=schema, user_scoped=["user_id"])
    call = {"tool_name": "orders", "arguments": {"text": "x", "user_id": 7}}
    other = {"tool_name": "orders", "arguments": {"text": "x", "customer": 7}}

    def defects(call: dict[str, Any]) -> list[str]:
        plan = Plan.model_validate({"type": "tool_calls", "calls": [call]})
        return [error.type for error in validate_plan(plan, {"orders": tool}, max_steps=10)]

    assert (defects(call), defects(other)) == ([], ["invalid_argument"])


def test_their_values_are_those_of_the_job() -> None:
    assert scoped_arguments(["customer_id", "tenant_id", "conversation_id"], CALL) == {
        "customer_id": "ada",
        "tenant_id": "acme",
        "conversation_id": "thread-7",
    }


def test_headers_say_whom_a_call_is_made_for() -> None:
    assert scope_headers(CALL) == {
        "X-Tenant-ID": "acme",
        "X-User-External-ID": "ada",
        "X-Conversation-ID": "thread-7",
    }
    assert scope_headers(replace(CALL, user_id="", context_id="job-1")) == {"X-Tenant-ID": "acme"}


@pytest.mark.parametrize(
    ("user", "shown"),
    [
        ("a@b.example;x=1", "a@b.example;x=1"),
        ("a\r\nX-Admin: 1", "a%0D%0AX-Admin:%201"),
        ("Žofie", "%C5%BDofie"),
        ("5%", "5%25"),
    ],
)
def test_a_header_carries_any_name_and_no_other_header(user: str, shown: str) -> None:
    assert scope_headers(replace(CALL, user_id=user))["X-User-External-ID"] == shown
