"""What a step asks people while it is carried out: a question of the plan, of its tool, or whether it may call it.

Whoever asks breaks the attempt off. The step waits without a worker; once it is answered a further attempt begins
from its start, and gets the answer at once where it asks again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from planq.shared.agentic.schema.schemas import check_schema
from planq.shared.agentic.tools.contract import AskingPerson, Tool, ToolContext
from planq.shared.agentic.tools.definition import ToolDefinition
from planq.shared.agentic.tools.policy import Permission, ToolPolicy, argument_digest, rule_of
from planq.shared.kernel.claims import StepClaim
from planq.shared.kernel.job_store import JobStore
from planq.shared.kernel.questions import (
    APPROVAL_SCHEMA,
    Addressee,
    QuestionAnswer,
    StepQuestion,
    addressee,
    declined_error,
)
from planq.shared.kernel.states import AskedOf, Effect, QuestionKind, StepKind
from planq.shared.platform.errors import AuthFailed, InvalidArguments, Misconfigured, PolicyDenied
from planq.shared.subjects.tenants.config import Tenants
from planq.shared.subjects.tenants.secrecy import NEEDS_MASTER_KEY, asks_for_secret, is_marked
from planq.worker.engine.persist import persist
from planq.worker.handlers.stage_context import config_of

OWN_KINDS = (QuestionKind.FORM, QuestionKind.URL)
"""Questions that plans and tools ask themselves."""


class CallQuestions:
    """What one call of a tool asks, in its order (`planq.shared.agentic.tools.contract.AsksPeople`)."""

    def __init__(self, answers: Sequence[QuestionAnswer], *, can_seal: bool = False, is_plan: bool = False) -> None:
        """`answers` are those that the step has by now; those of other kinds than a tool's own are passed over.

        `can_seal` says whether this process has a master key for what is secret. The answer to a question that
        `is_plan`, asked by a plan, is the output of its step, and so never secret.
        """
        self._can_seal = can_seal
        self._is_plan = is_plan
        self._answers = {answer.ordinal: answer for answer in answers if answer.kind in OWN_KINDS}
        self._asked = 0

    def answer_to(self, question: StepQuestion) -> QuestionAnswer:
        ordinal, self._asked = self._asked, self._asked + 1
        if (answer := self._answers.get(ordinal)) is not None:
            return answer
        if question.schema is not None:
            try:
                check_schema(question.schema, "the schema of a question", is_trusted=False)
            except Misconfigured as error:
                raise InvalidArguments(error.message) from error
        is_secret = not self._is_plan and asks_for_secret(question.schema)
        if is_secret and not self._can_seal:
            raise AuthFailed(NEEDS_MASTER_KEY)
        if is_secret and question.default is not None:
            raise InvalidArguments("a question that asks for a secret has no default, which would be stored as it is")
        raise AskingPerson(replace(question, ordinal=ordinal, is_secret=is_secret))

    def given(self) -> Sequence[QuestionAnswer]:
        answers: list[QuestionAnswer] = []
        while (answer := self._answers.get(self._asked)) is not None:
            answers.append(answer)
            self._asked += 1
        return answers


class PlanQuestion:
    """A step that is itself a question, in the form of a tool: nothing is called, the answer is its output."""

    definition = ToolDefinition(name="elicitation", effect=Effect.IDEMPOTENT, kind=StepKind.QUESTION)

    async def call(self, arguments: dict[str, Any], context: ToolContext) -> Any:
        """Ask what the plan says; see `planq.shared.agentic.tools.contract.Tool.call`."""
        schema = arguments.get("schema")
        if isinstance(schema, Mapping) and is_marked(schema):
            raise InvalidArguments(
                "a plan's question may not ask for a secret, since its answer is the output of the step; let a tool "
                "ask for it, which gets it by `context.ask`"
            )
        return await context.ask(str(arguments.get("message", "")), schema, of="asker")


@dataclass(frozen=True, slots=True)
class Approvals:
    """Says whether a call may be made, and of whom a step asks what; `policy` is the server's."""

    store: JobStore
    policy: ToolPolicy
    tenants: Tenants

    async def addressed(self, claim: StepClaim, question: StepQuestion) -> StepQuestion:
        """Return a question that a plan or a tool asks, with whom it is asked of; what operators approve has that."""
        if question.kind not in OWN_KINDS or question.asked_of.kind is AskedOf.OPERATOR:
            return question
        config = await config_of(self.tenants, claim.tenant_id)
        return replace(question, asked_of=addressee(config.answers_from, claim.user_id))

    async def check(self, claim: StepClaim, tool: Tool, arguments: Mapping[str, Any]) -> None:
        """Return where the tool may be called with these arguments.

        Raises `PolicyDenied` where it never may, `AskingPerson` where a person has to say so first. An approval holds
        for this tool and these arguments; or for the tool, whatever its arguments, for the rest of the job. It does
        no more where a policy wants a stricter approver by now.
        """
        config = await config_of(self.tenants, claim.tenant_id)
        if not (claim.policies or self.policy or config.tool_policy):
            return
        rule = rule_of(claim.tool_name, claim.policies, of_operators=(self.policy, config.tool_policy))
        if rule.permission is Permission.AUTO:
            return
        if rule.permission is Permission.DENY:
            raise PolicyDenied(f"the tool policy denies {claim.tool_name!r}; use another tool, or do without")
        digest = argument_digest(arguments)
        for answer in claim.answers:
            asked = (answer.details.get("tool_name"), answer.details.get("arguments_sha256"))
            if answer.kind is QuestionKind.APPROVAL and asked == (claim.tool_name, digest):
                if not answer.is_accepted:
                    raise declined_error(answer)
                if rule.is_met_by(answer.asked_of):
                    return
        given = await persist(self.store.approvals, claim)
        if any(name == claim.tool_name and rule.is_met_by(asked_of) for name, asked_of in given.tools):
            return
        details = {
            "tool_name": claim.tool_name,
            "arguments": dict(arguments),
            "arguments_sha256": digest,
            "effect": str(tool.definition.effect),
            "cost": {"tokens": given.tokens, "cost_usd": given.cost_usd, "model_calls": given.model_calls},
        }
        message = f"May {claim.tool_name} be called with these arguments? It is {tool.definition.effect}."
        if rule.approver is AskedOf.ASKER:
            whom = addressee(config.approvals_from, claim.user_id)
        else:
            whom = Addressee(rule.approver, tuple(sorted(rule.ids)))
        question = StepQuestion(QuestionKind.APPROVAL, message, APPROVAL_SCHEMA, details=details, asked_of=whom)
        raise AskingPerson(question)
