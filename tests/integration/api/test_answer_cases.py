"""Conformance of answers to questions (suite `agently_plan`, operation `callback_http`), over HTTP."""

from __future__ import annotations

from uuid import uuid4

import pytest

from planq.shared.kernel.questions import StepQuestion
from planq.shared.kernel.states import QuestionKind
from tests.conformance.cases import Case, load, params
from tests.integration.api.conftest import Api
from tests.integration.api.control import begun, call

CASES = [case for case in load("agently_plan") if case.op == "callback_http"]

STATUS = {204: 200}
"""planq answers with the question as it is now, where the original had nothing to say (docs/decisions.md, D37)."""


@pytest.mark.parametrize("case", params(CASES))
def test_an_answer_is_taken_where_there_is_such_a_question(case: Case, control_api: Api) -> None:
    given = case.input
    question = str(uuid4())
    if given["known_message"]:
        story = begun(control_api, call("look"), call("put"))
        story.ask(0, StepQuestion(QuestionKind.FORM, "?"))
        question = control_api.http.get(f"/jobs/{story.id}/elicitations").json()["items"][0]["id"]
    body = {"action": given["body"]["action"], "content": given["body"].get("payload")}

    found = control_api.http.post(f"/elicitations/{question}", json=body)

    assert found.status_code == STATUS.get(case.expected["status"], case.expected["status"])
