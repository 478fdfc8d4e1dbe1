"""A `ToolContext` in one line, for a tool that is called as the function that it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from uuid import UUID

from planq.shared.agentic.tools.contract import ToolContext
from planq.shared.kernel.questions import QuestionAnswer, StepQuestion
from planq.shared.platform.errors import InternalFault
from planq.testing.answers import Answers, People

JOB = UUID(int=1)
"""The id of a job in a test: the same each time, so that keys and ids are."""


@dataclass(frozen=True, slots=True)
class _ScriptedPeople:
    people: People

    def answer_to(self, question: StepQuestion) -> QuestionAnswer:
        answer = self.people.answer(question)
        if answer is None:
            raise InternalFault(f"the tool asked {question.message!r}, and the test has no answer to that")
        return answer

    def given(self) -> tuple[QuestionAnswer, ...]:
        return ()


@dataclass(frozen=True, slots=True)
class _FixedSecrets:
    secrets: Mapping[str, str]

    async def get(self, name: str) -> str | None:
        return self.secrets.get(name)

    def get_from_thread(self, name: str) -> str | None:
        return self.secrets.get(name)


def tool_context(
    answers: Answers = (),
    *,
    secrets: Mapping[str, str] = MappingProxyType({}),
    tool_name: str = "tool",
    user: str = "",
    tenant: str = "default",
    conversation: str = "",
    step: int = 0,
    attempt: int = 1,
) -> ToolContext:
    """Return a context for a call of a tool: `await book_room(tool_context([{"city": "Pisa"}]))`.

    `answers` are what people answer to `ask`, in order, or a function of the `AskedQuestion`; an `AnswerDeclined` or
    `Cancelled` among them is raised. `secrets` are what the tenant keeps, by name. Nobody takes the step over, so
    `confirm` returns, and `progress` does nothing. `idempotency_key` is the same each time.
    """
    return ToolContext(
        job_id=str(JOB),
        step_index=step,
        attempt=attempt,
        tool_name=tool_name,
        tenant_id=tenant,
        user_id=user,
        context_id=conversation or str(JOB),
        request_id=str(JOB),
        trace_id="0" * 32,
        root_job_id=str(JOB),
        people=_ScriptedPeople(People(answers)),
        secrets=_FixedSecrets(secrets),
    )
