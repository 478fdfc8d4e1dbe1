"""What passes between the engine and a language model, free of any provider's vocabulary.

A stage asks once and gets one reply and one `ModelCall`, the record that becomes a `model_calls` row, also when the
call failed (`ModelFailed`). docs/decisions.md, D5 and D6.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from typing import Any
from uuid import UUID

from shared.domain.errors import ErrorRecord, ExecutionFailed


class Purpose(StrEnum):
    """Which stage a model call serves."""

    PLAN = "plan"
    RESPOND = "respond"


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message of a conversation; `role` is `system`, `user` or `assistant`."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Ask:
    """What a job asks of the model, the same in both stages.

    `instructions` come first (skills, then the agent's prompt), then `history` (oldest first, without the current
    message), then `input`, and `data` (JSON; None for none), which is shown as data. `model` is a full name such as
    `openai:gpt-5` or `offline`. With an `answer_schema` the answer shall be a JSON object that satisfies it: the
    provider is asked for that in its own way where it has one, and the model in words otherwise; whoever asks checks
    the answer. `temperature` and `max_tokens` None leave the worker's settings. `call_id` is the id that the record
    of the call shall have, where something is reserved for it; None leaves it to whoever makes the call.
    """

    job_id: str
    input: str
    model: str
    instructions: Sequence[str] = ()
    history: Sequence[ChatMessage] = ()
    data: Any = None
    answer_schema: Mapping[str, Any] | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    call_id: UUID | None = None


@dataclass(frozen=True, slots=True)
class ModelCall:
    """One logical call to a model, whatever number of HTTP attempts it took.

    `cost_usd` is None when the price of the model is not known. `exchange` is `{"request": …, "reply": …}`, or None
    where the settings say that prompts and replies are not kept. `error` is None exactly when the call succeeded.
    Whoever makes the call gives it an `id`, by which it is recorded once, however often it is told; one without is
    recorded as often as it is told.
    """

    purpose: Purpose
    model: str
    latency_ms: int
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: Decimal | None = None
    attempts: int = 1
    error: ErrorRecord | None = None
    exchange: Mapping[str, Any] | None = None
    id: UUID | None = None


@dataclass(frozen=True, slots=True)
class ToolCallRequest:
    """A tool call as a provider returned it; `arguments` is raw when the provider sent no valid JSON object."""

    name: str
    arguments: Mapping[str, Any] | str


@dataclass(frozen=True, slots=True)
class ModelReply:
    """What a model said: text, tool calls, or both; never neither (that is a `ModelFailed`)."""

    text: str
    tool_calls: Sequence[ToolCallRequest]
    call: ModelCall


class ModelFailed(Exception):
    """A model call that ended without a usable reply; `error` says why, `call` is the record of what was spent."""

    def __init__(self, error: ExecutionFailed, call: ModelCall) -> None:
        super().__init__(error.message)
        self.error = error
        self.call = call


@dataclass(frozen=True, slots=True)
class StepResult:
    """The outcome of one executed step, as RESPOND sees it.

    `output` is the structured output (None on failure); `error` is None exactly when the step succeeded. Of a large
    output it is a preview: `shortened_from` then says how many bytes of JSON the whole has. `index` is the step's;
    `code` and `details` are those of the error.
    """

    tool_name: str
    arguments: Mapping[str, Any]
    output: Any = None
    error: str | None = None
    duration_ms: int = 0
    shortened_from: int | None = None
    index: int = 0
    code: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def succeeded(self) -> bool:
        """True when the step has an output."""
        return self.error is None


@dataclass(frozen=True, slots=True)
class Repair:
    """An answer that did not satisfy its schema: what the model wrote, and every way in which it is wrong."""

    raw: str
    errors: Sequence[str]


@dataclass(frozen=True, slots=True)
class Findings:
    """What the responding model is told: the results in plan order, or the defects of a plan that was refused.

    With `is_direct` there are neither, because nothing was to be found: the model answers the conversation as it is.
    With a `repair` it is shown its own answer of before, and asked to put it right.
    """

    results: Sequence[StepResult] = ()
    plan_errors: Sequence[Mapping[str, Any]] = field(default_factory=tuple)
    is_direct: bool = False
    repair: Repair | None = None
