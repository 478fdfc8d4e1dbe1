"""What the engine and a language model exchange, in no provider's vocabulary (docs/decisions.md, D5, D6)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any
from uuid import UUID

from planq.shared.agentic.models.call_settings import CallSettings
from planq.shared.agentic.models.circuit import Turn
from planq.shared.agentic.models.ending import Incomplete, OnIncomplete
from planq.shared.agentic.turns.speakers import Speaker
from planq.shared.kernel.deferral import Deferral
from planq.shared.kernel.states import JobStatus
from planq.shared.kernel.steps import StepResult
from planq.shared.kernel.usage import ModelCall
from planq.shared.platform.errors import ExecutionFailed
from planq.shared.platform.values.parts import Part


@dataclass(frozen=True, slots=True)
class ToolCallRequest:
    """A tool call as the provider returned it; `arguments` is text if it was no JSON object; `id` may be ""."""

    name: str
    arguments: Mapping[str, Any] | str
    id: str = ""


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message of a conversation; `role` is `system`, `user`, `assistant` or `tool`.

    Each of `tool_calls` is followed by a `tool` message with its id and name. `state` is `ModelReply.state`, for the
    provider. `parts` follow `content` of `user` and `tool`. `memo` caches values computed from the message.
    """

    role: str
    content: str
    tool_calls: Sequence[ToolCallRequest] = ()
    call_id: str = ""
    name: str = ""
    state: Any = None
    parts: Sequence[Part] = ()
    memo: dict[str, Any] = field(default_factory=dict, init=False, compare=False, repr=False)


class TurnForm(StrEnum):
    """How the model is asked in a further round."""

    LOOP = "loop"  # by the forced tool `__planning__`, in its extended form
    REACT = "react"  # the tools are offered as they are, and the model may call several or answer
    ANSWER = "answer"  # no further call is made: the model answers from what there is


@dataclass(frozen=True, slots=True)
class TurnPrompt:
    """A caller's template that replaces planq's rules for a turn (`block.prompt_defects` finds nothing in it).

    `round_number` counts from 0; `rounds_left` includes this round.
    """

    template: str
    round_number: int
    rounds_left: int
    variables: Mapping[str, Any]


CONTEXT = "context"
"""Key of the context that a request without an agent sends next to its input."""


@dataclass(frozen=True, slots=True)
class StageAttempt:
    """The attempt that asks; `status` is the job's during it."""

    status: JobStatus
    attempt: int


ReserveMore = Callable[[ModelCall], Awaitable[int | None]]
"""Reserve one more call and return the maximum tokens of its reply; raises `ExecutionFailed`."""


@dataclass(frozen=True, slots=True)
class Ask:
    """What a job asks of the model, the same in both stages.

    The order is `tenant_prompt` (turns only), `instructions` (skills, the agent's prompt), `history` (oldest first),
    `input` with `parts`, and `data` (JSON). If `model` fails, `fallback_models` are tried with the keys of
    `tenant_id`.
    - `answer_schema`: the answer shall satisfy it; the caller checks. `prompt` replaces planq's rules for a turn.
    - `temperature`, `max_tokens`: None falls back to `settings`, then to the worker's settings.
    - `call_id`: id of the call's record, if tokens are reserved for it; `more` reserves the call that continues a
      text.
    - `stage`: followers of the job see the reply as it arrives; None for a side call.
    - `speaker` wrote `input`; with `tells_people` the messages of the history name their writers.
    - `is_bulk`: the reply may come later if that is cheaper; with a `deferral` it may raise `CallDeferred`.
    """

    job_id: str
    input: str
    model: str
    instructions: Sequence[str] = ()
    history: Sequence[ChatMessage] = ()
    data: Any = None
    answer_schema: Mapping[str, Any] | None = None
    prompt: TurnPrompt | None = None
    guide: str = ""
    insights: str = ""
    tenant_id: str = ""
    tenant_prompt: str | None = None
    fallback_models: Sequence[str] = ()
    temperature: float | None = None
    max_tokens: int | None = None
    settings: CallSettings | None = None
    call_id: UUID | None = None
    stage: StageAttempt | None = None
    speaker: Speaker | None = None
    tells_people: bool = False
    on_incomplete: OnIncomplete = "accept"
    parts: Sequence[Part] = ()
    is_bulk: bool = False
    deferral: Deferral | None = None
    more: ReserveMore | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class ModelReply:
    """A model's text, tool calls, or both; neither only in a turn with nothing left to do.

    `state` is opaque JSON that the provider needs back. `incomplete` is None for a whole reply.
    """

    text: str
    tool_calls: Sequence[ToolCallRequest]
    call: ModelCall
    state: Any = None
    incomplete: Incomplete | None = None


def reply_to_json(reply: ModelReply) -> dict[str, Any]:
    """Return the form of `plans.reply`: `{"text", "tool_calls": [{"id", "name", "arguments"}], "state"}`."""
    calls = [
        {"id": call.id, "name": call.name, "arguments": raw if isinstance(raw := call.arguments, str) else dict(raw)}
        for call in reply.tool_calls
    ]
    stored: dict[str, Any] = {"text": reply.text, "tool_calls": calls}
    return stored if reply.state is None else {**stored, "state": reply.state}


def reply_of_json(stored: Mapping[str, Any]) -> ChatMessage:
    """Return a stored reply as the assistant's message; raises `KeyError` or `TypeError`."""
    calls = [
        ToolCallRequest(str(call["name"]), call["arguments"], str(call.get("id", "")))
        for call in stored["tool_calls"]
    ]
    return ChatMessage("assistant", str(stored["text"]), tuple(calls), state=stored.get("state"))


class ModelFailed(Exception):
    """A model call without a reply; `call` has its cost, `turn` is set if all models' circuits are open."""

    def __init__(self, error: ExecutionFailed, call: ModelCall, turn: Turn | None = None) -> None:
        super().__init__(error.message)
        self.error = error
        self.call = call
        self.turn = turn


@dataclass(frozen=True, slots=True)
class Repair:
    """An answer that broke its schema: the model's text, and all its defects."""

    raw: str
    errors: Sequence[str]


@dataclass(frozen=True, slots=True)
class Findings:
    """The results in plan order, or a refused plan's defects; with a `repair` the model corrects its answer."""

    results: Sequence[StepResult] = ()
    plan_errors: Sequence[Mapping[str, Any]] = field(default_factory=tuple)
    is_direct: bool = False
    repair: Repair | None = None


@dataclass(frozen=True, slots=True)
class Background:
    """The background of a job's questions: of its tenant and its conversation.

    `tenant_prompt` is None outside conversations. `history` is the turns before, oldest first; `speaker` wrote this
    one, and `tells_people` says that messages name their writers. `planner_model` writes guides. `fallback_models`
    are tried in order. `tools` are the tenant's, in a turn. `insights` is for planners. `on_incomplete` is the
    tenant's.
    """

    tenant_prompt: str | None = None
    history: Sequence[ChatMessage] = ()
    planner_model: str | None = None
    fallback_models: Sequence[str] = ()
    tools: Sequence[str] = ()
    insights: str = ""
    speaker: Speaker | None = None
    tells_people: bool = False
    on_incomplete: OnIncomplete = "accept"


NO_BACKGROUND = Background()
