"""A model that says what a test wants, and keeps what it was asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from planq.shared.agentic.models.contract import CutOff
from planq.shared.agentic.models.exchange import (
    Ask,
    ChatMessage,
    Findings,
    ModelFailed,
    ModelReply,
    ToolCallRequest,
    TurnForm,
)
from planq.shared.agentic.tools.definition import ToolDefinition
from planq.shared.kernel.usage import ModelCall, Purpose
from planq.shared.platform.errors import ErrorRecord, ExecutionFailed

Called = tuple[str, Mapping[str, Any]] | ToolCallRequest
"""A call of a tool: its name and its arguments; as a `ToolCallRequest` it is what a provider returned, as it is."""

Reply = str | Sequence[Called] | ExecutionFailed
"""A text, calls of tools, or the failure of the model."""


@dataclass
class ScriptedModel:
    """Plans and answers as it was told.

    `planned` is its reply to the planning call: a text answers at once, calls (`[("greet", {"name": "Ana"})]`) are
    the plan. `answered` is its answer from the results, and that of an agent without tools; JSON where the agent has
    an output schema. `turns` are what it says in the rounds of `loop`, `react` and `guided`, one after the other, the
    last one again and again; `guided` is its reply to the planning call of `guided`. An `ExecutionFailed` is a model
    that fails. `asked` is what it was asked, and what it was shown: tools, results, or messages.
    """

    planned: Reply = "hello"
    answered: str | ExecutionFailed = "the answer"
    turns: Sequence[Reply] = ()
    guided: str | ExecutionFailed = "{}"
    asked: list[tuple[Ask, Any]] = field(default_factory=list)

    async def plan(self, ask: Ask, tools: Sequence[ToolDefinition], *, cut_off: CutOff | None = None) -> ModelReply:
        self.asked.append((ask, tools))
        return _reply(self.planned, ask, Purpose.PLAN, as_plan=True)

    async def guide(self, ask: Ask, tools: Sequence[ToolDefinition], *, cut_off: CutOff | None = None) -> ModelReply:
        self.asked.append((ask, tools))
        return _reply(self.guided, ask, Purpose.PLAN)

    async def turn(
        self,
        ask: Ask,
        tools: Sequence[ToolDefinition],
        transcript: Sequence[ChatMessage],
        form: TurnForm,
        *,
        cut_off: CutOff | None = None,
    ) -> ModelReply:
        """See `TurnPlanner`; the number of its messages in the transcript selects the turn."""
        self.asked.append((ask, transcript))
        if form is TurnForm.ANSWER or not self.turns:
            return _reply(self.answered, ask, Purpose.RESPOND)
        number = sum(message.role == "assistant" for message in transcript)
        said = self.turns[min(number, len(self.turns) - 1)]
        return _reply(said, ask, Purpose.PLAN, as_plan=form is TurnForm.LOOP)

    async def respond(self, ask: Ask, findings: Findings, *, cut_off: CutOff | None = None) -> ModelReply:
        self.asked.append((ask, findings))
        return _reply(self.answered, ask, Purpose.RESPOND)


def _reply(said: Reply, ask: Ask, purpose: Purpose, *, as_plan: bool = False) -> ModelReply:
    """Return a reply, or raise the failure that it is; calls `as_plan` come through the planning tool."""
    call = ModelCall(purpose, ask.model, latency_ms=0, input_tokens=0, output_tokens=0)
    if isinstance(said, ExecutionFailed):
        raise ModelFailed(said, replace(call, error=ErrorRecord.of(said)))
    if isinstance(said, str):
        return ModelReply(said, (), call)
    raw = [one for one in said if isinstance(one, ToolCallRequest)]
    own = [one for one in said if not isinstance(one, ToolCallRequest)]
    if raw or not as_plan:
        made = [ToolCallRequest(name, given, f"call-{number}") for number, (name, given) in enumerate(own)]
        return ModelReply("", [*raw, *made], call)
    calls = [{"tool_name": name, "arguments": dict(given)} for name, given in own]
    plan = {"type": "tool_calls", "reasoning": "scripted", "calls": calls}
    return ModelReply("", [ToolCallRequest("__planning__", plan)], call)
