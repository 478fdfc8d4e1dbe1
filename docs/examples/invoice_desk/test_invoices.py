"""The desk's tests: all but the last need no services, and take milliseconds."""

import asyncio
import json

import invoices
import pytest
from invoices import CLERK, pay_invoice, plan

from planq import ToolError
from planq.testing import ScriptedModel, run_agent, run_plan, tool_context

SMALL = "Invoice 1001 for order A-17: 840.00 EUR"
LARGE = "Invoice 1002 for order A-18: 2500.00 EUR"


def test_a_small_invoice_is_paid_at_once() -> None:
    run = run_plan(plan(SMALL), tools=invoices)
    assert run.outputs[2] == {"number": "1001", "cents": 84_000}
    assert run.questions == []


@pytest.mark.parametrize(("pay", "status"), [(True, "succeeded"), (False, "failed")])
def test_a_person_decides_about_a_large_one(pay: bool, status: str) -> None:
    run = run_plan(plan(LARGE), tools=invoices, answers=[{"pay": pay}])
    assert [one.message for one in run.questions] == ["Pay invoice 1002 of 2500.00 EUR?"]
    assert run.steps[2]["status"] == status


def test_nothing_is_paid_for_what_is_no_invoice() -> None:
    run = run_plan(plan("Dear all"), tools=invoices)
    assert [step["status"] for step in run.steps] == ["failed", "skipped", "skipped"]


def test_a_tool_alone() -> None:
    with pytest.raises(ToolError, match="not to be paid"):
        asyncio.run(pay_invoice("7", 5, False, tool_context([{"pay": False}])))


def test_the_clerk_hands_on_what_it_found() -> None:
    model = ScriptedModel(answered=json.dumps({"text": SMALL}))
    run = run_agent(CLERK, f"Hi,\n{SMALL}\nBye", tools=invoices, model=model)
    assert run.steps[0]["output"]["number"] == "1001"


def test_the_same_over_http(planq_server) -> None:
    with planq_server.client() as client:
        job = client.submit(plan=plan(LARGE)).wait(timeout=60)
        (question,) = job.questions()
        client.answer(question["id"], {"pay": True})
        job.result(timeout=60)
        assert job.steps[2]["output"] == {"number": "1002", "cents": 250_000}
