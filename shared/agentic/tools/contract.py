"""The interfaces of tools, and of what a tool's call may use."""

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
    """The right of a call to act while its attempt owns the step; all raise `OwnershipLost`, also if unsure."""

    def check(self) -> None:
        """Check by the worker's own clock, and whether the call is still wanted; from any thread, no I/O."""
        ...

    async def ask(self) -> None:
        """Do `check`, and ask the database; on the event loop."""
        ...

    def ask_from_thread(self) -> None:
        """Do `ask`, in a thread of the call."""
        ...

    def in_thread(self) -> AbstractContextManager[None]:
        """Within it a thread of the call may act and cannot be stopped; entered in that thread."""
        ...


class AskingPerson(BaseException):
    """Interrupts a call that asks a person; no `Exception`, so tools do not catch it."""

    def __init__(self, question: StepQuestion) -> None:
        super().__init__(question.message)
        self.question = question


class AsksPeople(Protocol):
    """The questions of one call, in its order."""

    def answer_to(self, question: StepQuestion) -> QuestionAnswer:
        """Return the answer to the call's next question; raises `AskingPerson` without one."""
        ...

    def given(self) -> Sequence[QuestionAnswer]:
        """Return the answers that this call has not read yet, in order; its next question is a new one."""
        ...


class Reports(Protocol):
    """Progress reports of one call."""

    def report(self, done: float | None, message: str) -> None:
        """Store a report, on the event loop; raises `ValueError` unless `done` is from 0 to 1."""
        ...

    def report_from_thread(self, done: float | None, message: str) -> None:
        """Do `report`, in a thread of the call."""
        ...


class KeepsSecrets(Protocol):
    """The secrets of the call's tenant."""

    async def get(self, name: str) -> str | None:
        """Return the secret, at most a second old; None without one."""
        ...

    def get_from_thread(self, name: str) -> str | None:
        """Do `get`, in a thread of the call."""
        ...


@dataclass(frozen=True)
class Question:
    """A question of a tool to a person: `await context.ask(Question("Which room?", schema={…}))`.

    The answer is an object that satisfies `schema`, any object without one. `default` is used if nobody answers in
    time. `of` may answer: the `asker`, for whom the job runs, or an `operator`. By default a question with a schema
    is for the asker, and one without, which asks for consent, for an operator.
    """

    message: str
    schema: Mapping[str, Any] | None = None
    default: Mapping[str, Any] | None = None
    of: Literal["asker", "operator"] | None = None


@dataclass(frozen=True, slots=True)
class ToolContext:
    """The caller of a tool, and the services of its call.

    `skill_id` is the first skill of the job's agent. `depth` counts the enclosing agents, without an orchestration's
    own job; `root_job_id` is the outermost job, `agent` the job's. `limits` are only set for steps of the kinds
    `agent` and `parallel`. `time_left_seconds` is the plan's remaining time at the claim, `timeout_seconds` the
    step's, with delegated jobs; None if unknown. `planned` are the arguments with references, read-only. A service is
    None if unavailable.
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
        """Return a person's answer to a question, an object that satisfies its schema.

        A text is the message of a `Question` with this `schema`, `default` and `of`; with a `Question` these raise
        `TypeError`. The call is interrupted here, and the step waits without a worker. After the answer the tool is
        called again with the same arguments, and this returns at once. So ask before you act, and ask the same
        questions in the same order. If nobody answers in time, `default` is used; without a default, the step fails.
        Raises `AnswerDeclined` or `Cancelled`, with the person's reason.
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
        """Do `ask`, in a synchronous tool of either pool."""
        if self.people is None:
            raise InternalFault(f"tool {self.tool_name!r} asked a question outside its call")
        if isinstance(question, str):
            question = Question(question, schema, default, of)
        elif schema is not None or default is not None or of is not None:
            raise TypeError("schema, default and of belong to the Question; leave them out here")
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
        """Report progress: `done` from 0 to 1 (`ValueError` otherwise), and a message for people; returns at once.

        The step and streams show it, at most once a second. For a tool with `longest_seconds`, each report restarts
        its `timeout_seconds`.
        """
        if self.reports is not None:
            self.reports.report(done, message)

    def progress_sync(self, done: float | None = None, message: str = "") -> None:
        """Do `progress`, in a synchronous tool of any pool."""
        if self.reports is not None:
            self.reports.report_from_thread(done, message)

    async def secret(self, name: str) -> str:
        """Return a secret of the job's tenant (`planq secrets set TENANT NAME`).

        From then on it is redacted in the process's logs and in the call's output, questions and errors. Raises
        `AuthFailed` if it does not exist or cannot be decrypted.
        """
        return self._kept(name, None if self.secrets is None else await self.secrets.get(name))

    def secret_sync(self, name: str) -> str:
        """Do `secret`, in a synchronous tool of any pool."""
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

        Raises `OwnershipLost` if another attempt may own it: the lease was not renewed, the call was cancelled, or
        its time ran out. The worker's own clock decides, at no cost. With `database` the database decides too (a job
        just cancelled, a changed clock), in one round trip; no answer is no confirmation.
        """
        if self.owner is not None:
            await self.owner.ask() if database else self.owner.check()

    def confirm_sync(self, *, database: bool = False) -> None:
        """Do `confirm`, in a synchronous tool of either pool."""
        if self.owner is not None:
            self.owner.ask_from_thread() if database else self.owner.check()

    @property
    def conversation_id(self) -> str:
        """Return the job's conversation, "" for none."""
        return "" if self.context_id == self.job_id else self.context_id

    @property
    def idempotency_key(self) -> str:
        """Return `<job>/<step>`, the same for all attempts, by which a receiver detects a repeat."""
        return f"{self.job_id}/{self.step_index}"


@dataclass(frozen=True, slots=True)
class Suspended:
    """Waits without a worker: the step succeeds with `output` after `delay`."""

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
    """An output with a text for models and artifacts for people.

    References and the schema see only `output`; models also see `content`. Artifacts are bytes or wrappers
    (`artifact_id`, `artifact`, `_metadata`) and are stored with the step. `cost_usd` is the price of the call.
    """

    output: Any
    artifacts: Sequence[Mapping[str, Any] | BytesArtifact] = ()
    content: str | None = None
    cost_usd: float | None = None


@dataclass(frozen=True, slots=True)
class NotHappened:
    """Result of `find_out`: the interrupted call has certainly had no effect, and will have none."""


class Tool(Protocol):
    """One callable tool."""

    @property
    def definition(self) -> ToolDefinition:
        """The published definition; constant for the process."""
        ...

    async def call(self, arguments: dict[str, Any], context: ToolContext) -> Any:
        """Run once and return the output: a JSON object, `Suspended`, or, for `Gathers`, `Delegated`.

        The caller validates `arguments` and output, and enforces the timeout by cancelling. Raises only
        `ExecutionFailed` subclasses and `asyncio.CancelledError`.
        """
        ...


@runtime_checkable
class FindsOut(Tool, Protocol):
    """A tool with the recovery `find_out`, for calls that were interrupted."""

    async def find_out(self, arguments: dict[str, Any], context: ToolContext) -> Any:
        """Return the output of the earlier call with these arguments and this key, or `NotHappened`.

        Runs before the step's next call, with the same timeout, and is retried like a read. After `NotHappened` the
        tool is called again. Raises like `call`.
        """
        ...


@runtime_checkable
class Gathers(Tool, Protocol):
    """A tool whose `call` may return `Delegated`: its output is made from the child jobs."""

    async def gather(
        self, arguments: dict[str, Any], children: Sequence[ChildOutcome], note: Any, context: ToolContext
    ) -> Any:
        """Return the step's output from its child jobs, in the order of the request.

        Runs instead of `call` once `Delegated.until` holds, in an own attempt with the same timeout; may be repeated.
        `arguments` are those of the call. Unfinished children are cancelled when the step ends. Raises like `call`;
        after a retryable error, `call` delegates again while the step has retries.
        """
        ...


class Toolbox(Protocol):
    """The tools of this process."""

    def definitions(self) -> Sequence[ToolDefinition]:
        """Return all definitions, sorted by name."""
        ...

    def find(self, name: str) -> Tool | None:
        """Return the tool of exactly this registered name, or None."""
        ...


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of a document that matched a search; a higher `score` is more relevant."""

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
    """The published tools, for planning."""

    async def tools(self, tenant_id: str) -> Mapping[str, ToolDefinition]:
        """Return a tenant's tools by name, at most a few seconds old; raises `DatabaseUnavailable`."""
        ...
