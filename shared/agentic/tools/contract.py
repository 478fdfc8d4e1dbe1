"""Tools, and what they may ask of the world."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal, Protocol, runtime_checkable

from planq.shared.agentic.tools.definition import ToolDefinition
from planq.shared.kernel.children import ChildOutcome
from planq.shared.kernel.limits import Limits
from planq.shared.kernel.questions import Addressee, QuestionAnswer, StepQuestion, declined_error
from planq.shared.kernel.states import AskedOf, QuestionKind
from planq.shared.platform.errors import AuthFailed, InternalFault


class Ownership(Protocol):
    """The right of one call of a tool to act, as long as its attempt is the owner of the step.

    All raise `OwnershipLost` where it is not, or that cannot be known.
    """

    def check(self) -> None:
        """Look at the worker's own clock, and whether somebody still waits for the call; from any thread, no I/O."""
        ...

    async def ask(self) -> None:
        """Look there and ask the database; on the event loop."""
        ...

    def ask_from_thread(self) -> None:
        """Do what `ask` does, in a thread of the call."""
        ...

    def in_thread(self) -> AbstractContextManager[None]:
        """While it lasts, a thread of the call may act, which nobody can stop; entered in that thread."""
        ...


class AskingPerson(BaseException):
    """Breaks a call off that asks a person; the step waits, and the tool is called again with the answer.

    No `Exception`, so that no tool takes it for an error of its own.
    """

    def __init__(self, question: StepQuestion) -> None:
        super().__init__(question.message)
        self.question = question


class AsksPeople(Protocol):
    """What one call of a tool asks people, in its order."""

    def answer_to(self, question: StepQuestion) -> QuestionAnswer:
        """Return the answer to the next question of this call; raises `AskingPerson` where there is none yet."""
        ...

    def given(self) -> Sequence[QuestionAnswer]:
        """Return the answers that this call has not asked for yet, in their order; its next question is a new one."""
        ...


class Reports(Protocol):
    """What one call says of itself while it runs."""

    def report(self, done: float | None, message: str) -> None:
        """Take a report, on the event loop; raises `ValueError` where `done` is no part of the whole."""
        ...

    def report_from_thread(self, done: float | None, message: str) -> None:
        """Do what `report` does, in a thread of the call."""
        ...


class KeepsSecrets(Protocol):
    """What the tenant of one call keeps secret for its tools."""

    async def get(self, name: str) -> str | None:
        """Return the secret of this name as it is, or was a second ago; None where there is none."""
        ...

    def get_from_thread(self, name: str) -> str | None:
        """Do what `get` does, in a thread of the call."""
        ...


@dataclass(frozen=True)
class Question:
    """What a tool asks a person: `await context.ask(Question("Which room?", schema={…}))`.

    `schema` is a JSON Schema of an object, which the answer satisfies; without one any object does. `default` is the
    answer where nobody gives one in time. `of` says who may answer: the `asker`, for whom the job is done, or an
    `operator`. By default a question with a schema is the asker's. One without asks for consent: it is an operator's.
    """

    message: str
    schema: Mapping[str, Any] | None = None
    default: Mapping[str, Any] | None = None
    of: Literal["asker", "operator"] | None = None


@dataclass(frozen=True, slots=True)
class ToolContext:
    """Who calls a tool, and under which key.

    `idempotency_key` is `<job>/<step>`: the same for every attempt of the step, so that a receiver can tell a repeat.
    `skill_id` is the first skill that the job's agent lists. The ids end up in the `_metadata` of artifacts.
    `depth` counts the agents that this job is nested in (an orchestration's own job is none), `root_job_id` is the
    outermost job above it, `agent` what this job runs.
    `limits` are the job's; they are known only to steps of the kinds `agent` and `parallel`. `time_left_seconds` is
    what the plan had left when the step was claimed, `timeout_seconds` what the step gets, with what it delegates;
    None where that is not known. `planned` are the arguments as the plan has them, references and all; they are not
    to be changed. `owner` is None where nobody can take the step over, `people` where nobody can be asked, `secrets`
    where nothing is kept secret, `reports` where nobody is told.
    """

    job_id: str
    step_index: int
    attempt: int
    tool_name: str
    tenant_id: str
    user_id: str
    context_id: str
    request_id: str
    trace_id: str
    depth: int = 0
    root_job_id: str = ""
    agent: str | None = None
    limits: Limits | None = None
    time_left_seconds: float | None = None
    timeout_seconds: float | None = None
    round: int = 0
    skill_id: str | None = None
    planned: Mapping[str, Any] | None = None
    owner: Ownership | None = field(default=None, repr=False, compare=False)
    people: AsksPeople | None = field(default=None, repr=False, compare=False)
    secrets: KeepsSecrets | None = field(default=None, repr=False, compare=False)
    reports: Reports | None = field(default=None, repr=False, compare=False)

    async def ask(
        self,
        question: str | Question,
        schema: Mapping[str, Any] | None = None,
        *,
        default: Mapping[str, Any] | None = None,
        of: Literal["asker", "operator"] | None = None,
    ) -> Mapping[str, Any]:
        """Return what a person answers to a question, an object that satisfies its schema.

        A text is the message of a `Question` with this `schema`, `default` and `of`; a `Question` brings its own, and
        raises `TypeError` beside others.
        The call is broken off here, and the step waits without a worker. Once it is answered the tool is called anew
        from its beginning, with the same arguments, and this returns at once. So ask before you act, and ask the same
        questions in the same order in every call. Nobody's answer in time is the `default`; without one the step
        fails. Raises `AnswerDeclined` or `Cancelled` where the person does not answer, with their reason.
        """
        return self.ask_sync(question, schema, default=default, of=of)

    def ask_sync(
        self,
        question: str | Question,
        schema: Mapping[str, Any] | None = None,
        *,
        default: Mapping[str, Any] | None = None,
        of: Literal["asker", "operator"] | None = None,
    ) -> Mapping[str, Any]:
        """Do what `ask` does, in a synchronous tool of either pool."""
        if self.people is None:
            raise InternalFault(f"tool {self.tool_name!r} asked where nobody can be asked: only its call may")
        if isinstance(question, str):
            question = Question(question, schema, default, of)
        elif schema is not None or default is not None or of is not None:
            raise TypeError("a Question has a schema, a default and an `of` of its own; expected none beside it")
        whom = question.of or ("operator" if question.schema is None else "asker")
        put = StepQuestion(
            QuestionKind.FORM,
            question.message,
            question.schema,
            default=question.default,
            asked_of=Addressee(AskedOf.OPERATOR) if whom == "operator" else Addressee(),
        )
        answer = self.people.answer_to(put)
        if not answer.is_accepted:
            raise declined_error(answer)
        return answer.content or {}

    async def progress(self, done: float | None = None, message: str = "") -> None:
        """Say how far the call has come: `done` as a part from 0 to 1, and a message for people.

        It stands with the step while that runs, and streams tell it, once a second at most. A tool that declares
        `longest_seconds` gets its `timeout_seconds` anew by each report. Returns at once. Raises `ValueError` where
        `done` is no such part.
        """
        if self.reports is not None:
            self.reports.report(done, message)

    def progress_sync(self, done: float | None = None, message: str = "") -> None:
        """Do what `progress` does, in a synchronous tool of any pool."""
        if self.reports is not None:
            self.reports.report_from_thread(done, message)

    async def secret(self, name: str) -> str:
        """Return what the job's tenant keeps secret under a name (`planq secrets set TENANT NAME`).

        It is hidden in whatever the process logs from then on, and in what this call returns, asks or fails with.
        Raises `AuthFailed` where the tenant has no such secret, or it cannot be opened: nothing was done then.
        """
        return self._kept(name, None if self.secrets is None else await self.secrets.get(name))

    def secret_sync(self, name: str) -> str:
        """Do what `secret` does, in a synchronous tool of any pool."""
        return self._kept(name, None if self.secrets is None else self.secrets.get_from_thread(name))

    def _kept(self, name: str, text: str | None) -> str:
        if text is None:
            raise AuthFailed(
                f"the tenant {self.tenant_id!r} keeps no secret {name[:80]!r}, which {self.tool_name!r} asks for;"
                " store it by `planq secrets set`, and give every worker PLANQ_SECRET_KEYS"
            )
        return text

    async def confirm(self, *, database: bool = False) -> None:
        """Return if this attempt still owns its step; call it just before the effect.

        Raises `OwnershipLost` when another attempt may take over or has taken over: the worker's lease could not be
        renewed, the call was broken off, or its time has run out. That is known here, by the worker's own clock, and
        costs nothing. With `database` the database is asked too, which knows of more (a job just cancelled, a clock
        there that was set): a round trip; where it does not answer, that is no confirmation.
        """
        if self.owner is not None:
            await self.owner.ask() if database else self.owner.check()

    def confirm_sync(self, *, database: bool = False) -> None:
        """Do what `confirm` does, in a synchronous tool of either pool."""
        if self.owner is not None:
            self.owner.ask_from_thread() if database else self.owner.check()

    @property
    def conversation_id(self) -> str:
        """Return the conversation that the job belongs to, empty for none."""
        return "" if self.context_id == self.job_id else self.context_id

    @property
    def idempotency_key(self) -> str:
        """Return the key that stays the same over all attempts of the step."""
        return f"{self.job_id}/{self.step_index}"


@dataclass(frozen=True, slots=True)
class Suspended:
    """A tool's way to wait without holding a worker: the step succeeds with `output` once `delay` has passed."""

    delay: timedelta
    output: Any


@dataclass(frozen=True, slots=True)
class BytesArtifact:
    """An artifact of bytes, such as a picture or a PDF; `metadata` is its `_metadata`."""

    artifact_id: str
    data: bytes = field(repr=False)
    media_type: str
    metadata: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RichOutput:
    """An output with what is not for references: a text for models, and artifacts for people.

    The output is what references see and what its schema describes. `content` is shown to models beside it. Each
    artifact is of bytes, or a wrapper with `artifact_id`, `artifact` and `_metadata`, and kept with the step like one
    that is the output itself. `cost_usd` is what the call says that it cost.
    """

    output: Any
    artifacts: Sequence[Mapping[str, Any] | BytesArtifact] = ()
    content: str | None = None
    cost_usd: float | None = None


@dataclass(frozen=True, slots=True)
class NotHappened:
    """What a tool's `find_out` returns when the call that was cut off certainly has not taken effect, nor will."""


class Tool(Protocol):
    """One callable tool."""

    @property
    def definition(self) -> ToolDefinition:
        """The published definition; constant for the life of the process."""
        ...

    async def call(self, arguments: dict[str, Any], context: ToolContext) -> Any:
        """Run once and return the structured output: a JSON object, or `Suspended`, or (`Gathers`) `Delegated`.

        The caller has validated `arguments`, validates the output, and enforces the timeout by cancelling this call.
        Raises only `ExecutionFailed` subclasses (and `asyncio.CancelledError`): foreign exceptions are mapped here.
        """
        ...


@runtime_checkable
class FindsOut(Tool, Protocol):
    """A tool with the recovery `find_out`: it can find out what became of a call of its own that was cut off."""

    async def find_out(self, arguments: dict[str, Any], context: ToolContext) -> Any:
        """Return the output of the earlier call with these arguments and this key, or `NotHappened`.

        Asked before the step's next call, under the same timeout, and asked again like a read when it fails. It is
        believed: after `NotHappened` the tool is called again. Raises as `call` does.
        """
        ...


@runtime_checkable
class Gathers(Tool, Protocol):
    """A tool whose `call` may return `Delegated`: it makes its output from what became of the child jobs."""

    async def gather(
        self, arguments: dict[str, Any], children: Sequence[ChildOutcome], note: Any, context: ToolContext
    ) -> Any:
        """Return the step's output from its child jobs, in the order in which they were asked for.

        Called instead of `call` once `Delegated.until` holds, in an attempt of its own and under the same timeout;
        again where that attempt was lost, so it only looks. `arguments` are those of the call. Children that have not
        ended are cancelled when the step ends, whether this returns or raises. Raises as `call` does; a retryable
        error says that the children failed by what may pass: where the step has retries left, `call` makes new ones.
        """
        ...


class Toolbox(Protocol):
    """The tools that this process can run."""

    def definitions(self) -> Sequence[ToolDefinition]:
        """Return every tool's definition, sorted by name."""
        ...

    def find(self, name: str) -> Tool | None:
        """Return the tool of exactly this registered name, or None when this process does not offer it."""
        ...


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of a document that matched a knowledge search; `score` grows with relevance."""

    title: str
    source: str
    text: str
    score: float


class Knowledge(Protocol):
    """Full-text search over loaded documents."""

    async def search(self, tenant_id: str, query: str, limit: int) -> Sequence[Passage]:
        """Return at most `limit` passages, best first; empty when nothing matches. `query` is plain text."""
        ...


class ToolCatalogue(Protocol):
    """The tools that workers have published, as planning needs them."""

    async def tools(self, tenant_id: str) -> Mapping[str, ToolDefinition]:
        """Return a tenant's tools by name, at most a few seconds old; raises `DatabaseUnavailable`."""
        ...
