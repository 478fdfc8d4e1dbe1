"""What passes between the engine and a language model, free of any provider's vocabulary.

A stage asks once and gets one reply and one `ModelCall`, the record that becomes a `model_calls` row, also when the
call failed (`ModelFailed`). docs/decisions.md, D5 and D6.
"""

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
    """A tool call as a provider returned it; `arguments` is raw when the provider sent no valid JSON object.

    `id` is the provider's, by which it finds the call's result again; empty where it gave none.
    """

    name: str
    arguments: Mapping[str, Any] | str
    id: str = ""


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message of a conversation; `role` is `system`, `user`, `assistant` or `tool`.

    An assistant's message may hold `tool_calls`; each is followed by a message of the role `tool` whose `call_id` is
    the call's id and whose `name` is the tool's. `state` is what the provider needs back with its own message
    (`ModelReply.state`). `parts` are images, files and audio behind `content`, of the roles `user` and `tool` alone.
    `memo` is what was computed from the message: those of a loop stay the same from round to round.
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
    """How the planner of a further round is asked."""

    LOOP = "loop"  # by the forced tool `__planning__`, in its extended form
    REACT = "react"  # the tools are offered as they are, and the model may call several or answer
    ANSWER = "answer"  # no further call is made: the model answers from what there is


@dataclass(frozen=True, slots=True)
class TurnPrompt:
    """A template of the caller's in the place of planq's own rules for a turn, and what it may insert.

    `round_number` counts the rounds from 0, `rounds_left` the one that is planned now and those after it. `variables`
    are the caller's own. Precondition: `agentic.rounds.block.prompt_defects` finds nothing in `template`.
    """

    template: str
    round_number: int
    rounds_left: int
    variables: Mapping[str, Any]


CONTEXT = "context"
"""Under this name a job without an agent keeps what its request tells beside its input, where others have data."""


@dataclass(frozen=True, slots=True)
class StageAttempt:
    """The attempt at a stage that asks; `status` is the job's meanwhile."""

    status: JobStatus
    attempt: int


ReserveMore = Callable[[ModelCall], Awaitable[int | None]]
"""Reserves one more call after this one, and returns the most tokens of its reply; raises `ExecutionFailed`."""


@dataclass(frozen=True, slots=True)
class Ask:
    """What a job asks of the model, the same in both stages.

    `instructions` come first (skills, then the agent's prompt), then `history` (oldest first, without the current
    message), then `input`, and `data` (JSON; None for none), which is shown as data. `model` is a full name such as
    `openai:gpt-5` or `offline`. With an `answer_schema` the answer shall be a JSON object that satisfies it: the
    provider is asked for that in its own way where it has one, and the model in words otherwise; the asker checks
    the answer. `prompt` takes the place of planq's own rules for a turn; None leaves them. `guide` is what a turn is
    told of the job's guide, "" for none; `insights` what a planner is told of earlier jobs. In jobs of a conversation
    `tenant_prompt` is a text: it stands below the guardrails and above `instructions`. Where `model` fails,
    `fallback_models` are asked in this order; providers get the keys of the tenant `tenant_id` where it has any.
    `temperature` and `max_tokens` None leave `settings`, and these the worker's settings. `call_id` is the id that
    the record of the call shall have, where something is reserved for it; None leaves it to the caller of the
    model. Who follows the job is shown the reply while it comes where a `stage` asks; None is a call beside it. In
    a turn `speaker` is who has written `input`, where people are told apart; `tells_people` says that messages of
    the history are shown so.
    `on_incomplete` says what becomes of a text that is cut off. `more` reserves one more call, which goes on from
    such a text, of a budget; without it nothing is reserved.
    `parts` are images, files and audio behind `input`. `is_bulk` says that nobody waits for the reply: it may come
    later where that is cheaper. With a `deferral` the call may wait for a provider's batch (`CallDeferred`).
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
    """What a model said: text, tool calls, or both; neither only in a turn, where nothing is left to do.

    `state` is JSON that the provider needs back when the conversation goes on (thought signatures, say), None where
    it needs none: opaque, and given back unchanged as `ChatMessage.state`. `incomplete` says why the reply was cut
    off, None for a whole one.
    """

    text: str
    tool_calls: Sequence[ToolCallRequest]
    call: ModelCall
    state: Any = None
    incomplete: Incomplete | None = None


def reply_to_json(reply: ModelReply) -> dict[str, Any]:
    """Return the form in which `plans.reply` holds a reply: `{"text", "tool_calls": [{"id", "name", "arguments"}]}`.

    `state` stands beside them where there is any. The record of the call is stored elsewhere.
    """
    calls = [
        {"id": call.id, "name": call.name, "arguments": raw if isinstance(raw := call.arguments, str) else dict(raw)}
        for call in reply.tool_calls
    ]
    stored: dict[str, Any] = {"text": reply.text, "tool_calls": calls}
    return stored if reply.state is None else {**stored, "state": reply.state}


def reply_of_json(stored: Mapping[str, Any]) -> ChatMessage:
    """Return the assistant's message that a stored reply was; `KeyError` or `TypeError` for what is none."""
    calls = [
        ToolCallRequest(str(call["name"]), call["arguments"], str(call.get("id", "")))
        for call in stored["tool_calls"]
    ]
    return ChatMessage("assistant", str(stored["text"]), tuple(calls), state=stored.get("state"))


class ModelFailed(Exception):
    """A model call that ended without a usable reply; `error` says why, `call` is the record of what was spent.

    `turn` is there where the circuits of all models that were asked are open.
    """

    def __init__(self, error: ExecutionFailed, call: ModelCall, turn: Turn | None = None) -> None:
        super().__init__(error.message)
        self.error = error
        self.call = call
        self.turn = turn


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
