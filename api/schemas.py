"""What goes over the wire: requests as they are checked, answers as they are described in `/openapi.json`.

Separate from the tables on purpose. Requests refuse unknown fields; answers list every field, null where there is
nothing yet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, create_model
from pydantic.config import JsonDict
from pydantic_core import PydanticCustomError

from planq.shared.agentic.models.call_settings import AgentCallSettings
from planq.shared.agentic.models.ending import OnIncomplete
from planq.shared.agentic.models.input_parts import PARTS_SCHEMA
from planq.shared.agentic.models.names import MODEL_PATTERN
from planq.shared.agentic.plan.document import WHOLE, Plan
from planq.shared.agentic.plan.forms import PlanForm
from planq.shared.agentic.rounds.block import LoopBlock
from planq.shared.agentic.tools.definition import ToolDefinition
from planq.shared.kernel.budget import LIMITS, read_budget
from planq.shared.kernel.limits import Limits
from planq.shared.kernel.states import (
    AskedOf,
    JobStatus,
    Outcome,
    Priority,
    QuestionKind,
    QuestionStatus,
    Recovery,
    Respond,
    StepKind,
    StepStatus,
    StopReason,
    Strategy,
)


class PlanDocument(BaseModel):
    """The plan of a round."""

    model_config = ConfigDict(extra="allow")

    type: Literal["tool_calls"]
    reasoning: str | None = None
    calls: list[dict[str, Any]]


class GuideStepDocument(BaseModel):
    """One step of a guide; nothing executes it."""

    step_number: int
    description: str
    tool: str | None = Field(description="The tool that it needs, null for none.")
    tool_arguments: dict[str, Any]
    depends_on: list[int] = Field(description="Numbers of other steps, as the planner wrote them.")
    success_criteria: str


class GuideDocument(BaseModel):
    """The guide of a job of `guided`: advice that the model is told in its turns."""

    type: Literal["guide"]
    steps: list[GuideStepDocument]
    estimated_steps: int
    complexity: Literal["low", "medium", "high"]
    success_criteria: str


T = TypeVar("T")

MAX_METADATA_BYTES = 16 * 1024
INCOMPLETE = (
    "Why the answer was cut off: `reason`, the provider's `finish_reason`, and a `message`; null for a whole one."
)


def _inlined(model: type[BaseModel]) -> dict[str, Any]:
    """Return a model's JSON Schema without `$defs`, so that it can stand inside another document."""
    schema = model.model_json_schema()
    definitions = schema.pop("$defs", {})

    def inline(value: Any) -> Any:
        if isinstance(value, dict):
            if "$ref" in value:
                return inline(definitions[value["$ref"].rpartition("/")[2]])
            return {key: inline(item) for key, item in value.items()}
        return [inline(item) for item in value] if isinstance(value, list) else value

    inlined: dict[str, Any] = inline(schema)
    return inlined


_PLAN_SCHEMA = _inlined(Plan)
_OPTIONAL_PLAN_SCHEMA: dict[str, Any] = {
    "anyOf": [_PLAN_SCHEMA, {"type": "null"}],
    "description": "A plan to run as it is, without a planning call.",
}
_OPTIONAL_STRATEGY_SCHEMA: dict[str, Any] = {
    "anyOf": [{"type": "string", "enum": [strategy.value for strategy in Strategy]}, {"type": "null"}],
    "description": "Who makes the next plan; the agent's own by default, else `plan`.",
}
_OPTIONAL_LOOP_SCHEMA: dict[str, Any] = {
    "anyOf": [_inlined(LoopBlock), {"type": "null"}],
    "description": "How the rounds of `loop` and `react` are made; it narrows the agent's own block.",
}
_TIME = {"type": "string", "format": "date-time"}
_UUID = {"type": "string", "format": "uuid"}

Time = Annotated[str, WithJsonSchema(_TIME)]
Id = Annotated[str, WithJsonSchema(_UUID)]
ToolNames = Annotated[list[str], Field(max_length=1_000)]

MAX_USER_CHARS = 128

User = Annotated[
    str | None,
    Field(
        min_length=1,
        max_length=MAX_USER_CHARS,
        pattern=r"^[^\x00-\x1f\x7f]+$",
        description="Whose job it is, an id of the caller's choice. Child jobs have it too, and tools get it: "
        "moments, what is kept of a user, and reminders belong to it.",
    ),
]


_PUBLIC_URL = r"^https?://[a-z0-9.-]+(/[a-zA-Z0-9/._~?=&-]*)?$"
CallbackUrl = Annotated[
    str, Field(description="A public http or https address.", json_schema_extra={"pattern": _PUBLIC_URL})
]

ConversationId = Annotated[
    str | None, Field(max_length=64, description="The conversation that it is a turn of, or reads.")
]
ConversationUse = Annotated[
    Literal["turn", "read"] | None,
    Field(description="`read`: it is shown what was said before, and is no turn itself."),
]
Metadata = Annotated[dict[str, Any] | None, Field(description="Kept and returned as it is; at most 16 KiB.")]

SAYS_SOMETHING = r"^[^\x00]*[^\s\x00\x1c-\x1f\x85\ufeff][^\x00]*$"
"""A text that is not only white space, as Python and ECMAScript have it, without NUL; for `/openapi.json`."""


def object_with(*names: str, **types: str) -> JsonDict:
    """Return the schema of an object where none of `names` is missing, and fields have these JSON types.

    A type of `null` lets the field be left out.
    """
    return {"required": [*names], "properties": {name: {"type": kind} for name, kind in types.items()}}


_Count = Annotated[int, Field(gt=0, lt=2**31), WHOLE] | None
_Bound = Annotated[float, Field(gt=0)] | None


class RequestBody(BaseModel):
    """What is sent; fields that nothing knows are refused."""

    model_config = ConfigDict(extra="forbid", strict=True)


class BudgetRequest(RequestBody):
    """What a job and all jobs below it may use up together; at least one of the limits."""

    model_config = ConfigDict(json_schema_extra={"anyOf": [object_with(name, **{name: "number"}) for name in LIMITS]})

    max_tokens: _Count = Field(None, description="Tokens of all model calls.")
    max_cost_usd: Annotated[float, Field(gt=0, lt=1e9)] | None = Field(
        None, description="What all model calls cost, in US dollars."
    )
    max_model_calls: _Count = Field(None, description="Calls to a model.")
    max_steps: _Count = Field(None, description="Steps of all plans.")
    soft: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None, description="The share of any limit at which one warning is given."
    )
    ask: bool | None = Field(None, description="Pause then, until a person resumes the job.")


if TYPE_CHECKING:
    _Bounds = RequestBody
else:
    _BOUNDS = {one.name: (_Bound, Field(None, description=one.metadata["meaning"])) for one in fields(Limits)}
    _Bounds = create_model("_Bounds", __base__=RequestBody, **_BOUNDS)


class LimitsRequest(_Bounds):
    """Bounds of one job; each can only be lower than the server's own, and zero is refused."""

    budget: BudgetRequest | None = Field(None, description="Shared with all jobs below this one.")

    def bounds(self) -> dict[str, Any]:
        """Return what is to be lower than the server's own; the budget has none there."""
        return self.model_dump(exclude={"budget"}, exclude_none=True)

    def checked_budget(self) -> dict[str, Any] | None:
        """Return the budget as it is stored, None for none; raises `InvalidRequest` for one without limits."""
        return None if self.budget is None else read_budget(self.budget.model_dump(exclude_none=True))


_NO_AGENT = dict.fromkeys(("agent", "action", "with"), "null")
_SOMETHING_TO_DO: JsonDict = {
    "anyOf": [
        object_with("input", input="string", **_NO_AGENT),
        object_with("input", input="array", **_NO_AGENT),
        object_with("plan", plan="object", **_NO_AGENT),
        object_with("agent", "input", agent="string", input="string", plan="null"),
        object_with("agent", "input", agent="string", input="array", plan="null"),
        object_with("agent", "action", agent="string", action="string", plan="null"),
    ]
}
"""Which fields of a job's request go together, for `/openapi.json`."""


_INPUT_SCHEMA: dict[str, Any] = {
    "anyOf": [{"type": "string", "pattern": SAYS_SOMETHING}, PARTS_SCHEMA, {"type": "null"}],
    "description": "What is asked: a text of at most 100 kB of UTF-8, or a list of parts: texts, images, files and "
    "audio. May be left out where `plan` is given.",
}


def _text_or_list(value: Any) -> Any:
    if value is None or isinstance(value, (str, list)):
        return value
    raise PydanticCustomError("input_type", "Input should be a valid string or a list of parts")


class JobRequest(RequestBody):
    """A request that becomes a job. `input` may be left out only where `plan` is given."""

    model_config = ConfigDict(json_schema_extra=_SOMETHING_TO_DO)

    input: Annotated[Any, BeforeValidator(_text_or_list), WithJsonSchema(_INPUT_SCHEMA)] = None
    strategy: Annotated[str | None, WithJsonSchema(_OPTIONAL_STRATEGY_SCHEMA)] = None
    priority: Literal["interactive", "bulk"] | None = Field(
        None, description="`bulk` for a job that nobody waits for: it gives way to interactive ones, the default."
    )
    loop: Annotated[Any, WithJsonSchema(_OPTIONAL_LOOP_SCHEMA)] = None
    plan: Annotated[Any, WithJsonSchema(_OPTIONAL_PLAN_SCHEMA)] = None
    respond: Literal["model", "output", "none"] | None = Field(
        None,
        description="What it answers with: what a `model` writes about the results, the `output` of the last step, "
        "or `none`. `output` by default where `plan` is given, else `model`, the only one with an agent or rounds.",
    )
    on_incomplete: OnIncomplete | None = Field(
        None, description="An answer that was cut off: `accept` it, `continue` it by one more call, or `fail`."
    )
    model: str | None = Field(
        None,
        description="`offline` or `provider:model`; the server's own by default.",
        json_schema_extra={"pattern": MODEL_PATTERN},
    )
    model_settings: AgentCallSettings | None = Field(
        None, description="Settings of its model calls; each wins over that of its agent and of its model."
    )
    tools: ToolNames | None = Field(None, description="The only tools this job may use; all by default.")
    user: User = None
    metadata: Metadata = None
    limits: LimitsRequest | None = Field(None, description="Bounds lower than the server's own.")
    agent: str | None = Field(
        None, description="The agent that does it: in its newest version, which the job keeps, or as `name@version`."
    )
    action: str | None = Field(None, description="One of the agent's actions; `input` may then be left out.")
    with_: dict[str, Any] | None = Field(
        None, alias="with", description="What the agent, or its action, is given to work on; at most 100 kB."
    )
    context: str | None = Field(
        None, description="What the planner and the answer are told beside `input`, as data; at most 100 kB of UTF-8."
    )
    callback_url: CallbackUrl | None = Field(None, description="Where its end and its questions are told, signed.")
    conversation_id: ConversationId = None
    conversation: ConversationUse = None


class ResumeRequest(RequestBody):
    """How a job goes on; every field may be left out."""

    repeat_unsafe: bool = Field(
        default=False, description="Repeat also failed steps of `unsafe` tools whose effect may have happened."
    )


class ForkRequest(RequestBody):
    """What differs in the new job; all else is as in the source job."""

    from_step: Annotated[int, Field(ge=0, lt=2**31), WHOLE] | None = Field(
        None, description="This step of the new plan, and every later one, runs in any case."
    )
    plan: Annotated[Any, WithJsonSchema(_OPTIONAL_PLAN_SCHEMA)] = None
    input: str | None = Field(
        None,
        description="What is asked; the answer is written for it.",
        json_schema_extra={"pattern": SAYS_SOMETHING},
    )
    limits: LimitsRequest | None = None
    metadata: Metadata = None
    repeat_unsafe: bool = Field(
        default=False, description="Call `unsafe` tools also where the same call in the source may have taken effect."
    )
    dry_run: bool = Field(
        default=False, description="Store nothing; say what would be taken over and what would run."
    )


class SettleRequest(RequestBody):
    """What became of a call that was cut off."""

    outcome: Literal["happened", "did_not_happen", "unknown"] = Field(
        description="The step succeeds with `output`; runs again; fails with `outcome_unknown`."
    )
    output: Any = Field(None, description="What the tool would have returned; only where it happened.")


class AnswerRequest(RequestBody):
    """What a person answers."""

    action: str = Field(
        max_length=32,
        description="`accept`, `decline` or `cancel`; synonyms of them are taken, and any other word is refused.",
    )
    content: Any = Field(None, description="The answers, as the question's schema wants them; only to accept.")
    reason: str | None = Field(None, max_length=2_000, description="Why it is declined or cancelled; it is kept.")
    by: str | None = Field(None, max_length=MAX_USER_CHARS, description="Who answers, as the caller names them.")
    channel: str = Field("api", pattern=r"^[a-z][a-z0-9_-]{0,31}$", description="Over what the answer came.")


class ValidationRequest(RequestBody):
    """A plan to be checked against the published tools."""

    plan: Annotated[Any, WithJsonSchema({"description": "Any JSON; what is wrong with it comes back as errors."})]
    tools: ToolNames | None = Field(None, description="The only tools the plan may use; all by default.")


class Answer(BaseModel):
    """An answer of the API, all of whose fields are known."""

    model_config = ConfigDict(extra="forbid")

    @classmethod
    def of(cls, row: Mapping[str, Any], /, **made: Any) -> dict[str, Any]:
        """Return a document of this form: a field that is not in `made` is the column of its name."""
        return {name: made[name] if name in made else row[name] for name in _names_of(cls)}


@cache
def _names_of(model: type[Answer]) -> Sequence[str]:
    return [field.alias or name for name, field in model.model_fields.items()]


class PageDocument(Answer, Generic[T]):
    """What every list answers with."""

    items: list[T]
    next_cursor: str | None


class ErrorDocument(Answer):
    """Why a job or a step failed."""

    code: str
    message: str
    retryable: bool
    details: dict[str, Any]


class Origin(Answer):
    """A step of another job."""

    job_id: Id
    index: int


class OutputReference(Answer):
    """An output above 64 KiB: the SHA-256 of its JSON in hexadecimal, its length, and the path to it."""

    sha256: str
    bytes: int
    href: str


class JobErrorDocument(ErrorDocument):
    """Why a job did not succeed: with a `step`, that is the first one that failed for good."""

    step: int | None = Field(default=None, description="The index of that step; absent where it was none.")
    tool_name: str | None = None


class ProgressDocument(Answer):
    """What a running step has said of itself last."""

    done: float | None = Field(description="Which part of it is done, from 0 to 1.")
    message: str
    at: Time


class StepDocument(Answer):
    """One step. `arguments` are those it was called with; as planned while it has not begun, or where too large."""

    index: int = Field(
        description="It counts on over the rounds of the job: in later rounds, too, `$N` is this step."
    )
    round: int
    kind: StepKind = Field(description="A call of a tool, or one that hands over to an `agent` or several at once.")
    tool_name: str
    status: StepStatus
    attempt: int = Field(description="How many attempts have begun.")
    arguments: dict[str, Any]
    output: Any = Field(
        description="The structured output, null where it is large. A failed step has one where its call was "
        "blocked as a repetition: that of the call before."
    )
    output_ref: OutputReference | None = Field(description="Where a large output can be had.")
    content: str | None = Field(description="What the tool says to models beside its output.")
    error: ErrorDocument | None
    depends_on: list[int]
    reused_from: Origin | None = Field(description="The step whose outcome this one took over instead of running.")
    recovery: Recovery | None = Field(description="What happens when a call of this `unsafe` tool is cut off.")
    question: dict[str, Any] | None = Field(description="What the step waits for a person to say; see `settle`.")
    tool_away_since: Time | None = Field(
        description="Since when no live worker has the tool of a step that is ready; it waits for one."
    )
    progress: ProgressDocument | None = Field(description="What the step says of itself while it runs.")
    cost_usd: float | None = Field(description="What its calls have cost; null for a tool without a price.")
    worker_id: Id | None = Field(
        description="The worker of `GET /workers` that runs its attempt, or ran the last one; null where none does."
    )
    started_at: Time | None = Field(description="Null again after an attempt that was given back.")
    finished_at: Time | None


class StepList(Answer):
    """Steps of a job, in the order of their indices."""

    items: list[StepDocument]


class UsageDocument(Answer):
    """What the model calls of a job used. The cost is theirs and that of tools; null where no price was known."""

    input_tokens: int
    output_tokens: int
    cache_read_tokens: int = Field(description="The part of the input that the provider read from its prompt cache.")
    cache_write_tokens: int = Field(description="The part of the input that the provider stored in its prompt cache.")
    cost_usd: float | None


class TreeUsageDocument(UsageDocument):
    """What a job and all jobs below it have used. The cost sums up the known prices; null where none is known."""

    jobs: int = Field(description="The number of these jobs; 1 without child jobs.")
    model_calls: int


class BudgetUse(Answer):
    """What a job and all jobs of its tree have used, by what is recorded; costs that are not known are not in it."""

    tokens: int
    cost_usd: float
    model_calls: int
    steps: int


class BudgetDocument(BudgetRequest):
    """A budget as it was given, and what the tree has used of it."""

    used: BudgetUse


class WarningDocument(Answer):
    """A defect that did not stop the job."""

    code: str
    message: str
    details: dict[str, Any]


class PlanErrorDocument(Answer):
    """One defect of a plan; `error.type` names its kind."""

    tool_index: int | None
    argument: str
    template: str | None
    error: dict[str, Any]


class RoundDocument(Answer):
    """A round: its plan, and which steps are of it. A chained tool is a round without a plan."""

    round: int
    source: str = Field(
        description="Who made the plan: `model`, `caller`, `agent`, `orchestrate`, `chained`, or `guide`."
    )
    plan: PlanDocument | GuideDocument | None
    plan_errors: list[PlanErrorDocument] | None = Field(description="Null unless the plan was refused.")
    steps: list[int] = Field(description="The indices of its steps.")


class QuestionDocument(Answer):
    """A question to a person, and its answer once there is one."""

    id: Id
    job_id: Id
    root_job_id: Id = Field(description="The outermost job, where the question shows, too.")
    round: int
    step_index: int
    attempt: int
    kind: QuestionKind = Field(
        description="Data (`form`), whether a tool may be called (`approval`), whether a call that was cut off took "
        "effect (`outcome`), or something to be done elsewhere (`url`)."
    )
    status: QuestionStatus
    message: str
    schema_: dict[str, Any] | None = Field(alias="schema", description="What an accepted content has to satisfy.")
    url: str | None = Field(description="Where the person has to go.")
    details: dict[str, Any] | None = Field(description="Of an approval or an outcome the call that it is about.")
    is_secret: bool = Field(description="Asks for a secret: its answer is stored sealed, and shown as `***`.")
    default: Any = Field(description="The content where nobody answers in time; null for none.")
    asked_of: AskedOf = Field(description="Who may answer it beside an operator: `operator` is nobody else.")
    asked_ids: list[str] = Field(description="Of `asker` and `ids` the persons.")
    content: Any = Field(description="What was answered.")
    reason: str | None
    answered_by: str | None = Field(description="Who answered, as `by` or the channel says.")
    answered_key: dict[str, str | None] | None = Field(description="The `id` and `name` of the key that answered.")
    channel: str | None
    created_at: Time
    answered_at: Time | None
    due_at: Time | None = Field(description="Until when it waits; null where it is closed or its job paused.")


class QuestionPage(PageDocument[QuestionDocument]):
    """Questions, newest first; `next_cursor` is null on the last page."""


class OpenQuestion(Answer):
    """What a job, or a job below it, asks and nobody has answered; `GET /elicitations/{id}` has the whole."""

    id: Id
    job_id: Id = Field(description="The job whose step asks.")
    step_index: int
    kind: QuestionKind
    message: str


class AgentReference(Answer):
    """An agent in the version that a job has pinned."""

    name: str
    version: int


class StepReference(Answer):
    """The step that a child job works for."""

    job_id: Id
    step_index: int


class ChildDocument(Answer):
    """A job that a step has handed over to; `key` is its name among the step's children, where it has one."""

    id: Id
    step_index: int
    position: int
    key: str | None
    agent: AgentReference | None
    action: str | None
    status: JobStatus
    outcome: Outcome | None


class RetryDocument(Answer):
    """What the job waits for: its model failed in a way that may pass, and is asked again. No worker is held."""

    stage: Literal["planning", "responding"]
    attempts: int = Field(description="How often the stage has been tried by now.")
    next_attempt_at: Time | None = Field(description="When it is tried again; null while that is under way.")
    error: ErrorDocument = Field(description="What the model failed with the last time.")


class JobSummary(Answer):
    """A job without its plan and its steps."""

    id: Id
    status: JobStatus
    outcome: Outcome | None = Field(
        description="Null before its end. `partial`: it completed, but a step failed or its plan was refused, so that"
        " it answers from what there was. `incomplete`: it completed, and the model's answer was cut off."
    )
    incomplete: dict[str, str | None] | None = Field(description=INCOMPLETE)
    strategy: Strategy
    priority: Priority
    respond: Respond
    round: int = Field(description="The present round, from 0.")
    stop_reason: StopReason | None = Field(description="Why the loop of `loop` and `react` ended with an answer.")
    input: str
    answer: str | None = Field(description="Null before the end, and where the output of the last step is large.")
    preview: str | None = Field(
        description="A shortened text of a large output, for people; null for any other. `output_ref` of the job has "
        "the whole."
    )
    error: JobErrorDocument | None = Field(description="Null while it runs, and where it succeeded.")
    model_calls: int = Field(description="How many calls to a model the job has made.")
    usage: UsageDocument
    created_at: Time
    started_at: Time | None
    finished_at: Time | None
    paused_at: Time | None = Field(description="While this is set, nothing of the job is begun.")
    expires_at: Time | None = Field(description="When the job is given up; null when it is paused or has ended.")
    forked_from: Id | None = Field(description="The job whose outcomes this one could take over.")
    user: str | None = Field(description="Whose job it is, as the caller named them.")
    metadata: dict[str, Any] | None
    agent: AgentReference | None
    parent: StepReference | None
    depth: int = Field(description="0 for a job that was submitted, one more for each agent above it.")
    conversation_id: Id | None = Field(description="The conversation whose message it answers.")
    batch_id: Id | None = Field(description="The batch of which a line has become this job.")
    batch_line: int | None = Field(description="The number of that line in the file.")
    custom_id: str | None = Field(description="The `custom_id` of that line.")
    open_questions: list[OpenQuestion] = Field(
        description="What a person is asked by it or by jobs below it, oldest first, at most 100."
    )


class InputPartDocument(Answer):
    """An image, a file or audio of a job's input: its bytes are stored under their SHA-256, or are at a URL."""

    type: Literal["image", "file", "audio"]
    media_type: str | None = Field(description="Null for a URL of which the request does not say it.")
    filename: str | None
    sha256: str | None = Field(description="Of the bytes, in hexadecimal; null for a URL.")
    bytes: int | None = Field(description="How many they are; null for a URL.")
    url: str | None


class JobDocument(JobSummary):
    """A job with its plans and its steps. `plan` and `plan_errors` are those of its first round."""

    plan: PlanDocument | GuideDocument | None
    plan_errors: list[PlanErrorDocument] | None = Field(description="Null unless the plan was refused.")
    rounds: list[RoundDocument] = Field(description="All rounds that have a plan, in their order.")
    steps: list[StepDocument] = Field(description="The steps of all rounds.")
    output: Any = Field(
        description="With `respond: output` that of the last step, else what a structured agent has made; `answer` "
        "is its text. Null where it is large: see `output_ref`."
    )
    output_ref: OutputReference | None = Field(description="Where a large output of the last step can be had.")
    chained: dict[str, Any] | None = Field(
        description="What became of the agent's chained tool: its `result` or `error`; a long result has a "
        "`preview`, and as `output_ref` the `step` that has the whole."
    )
    children: list[ChildDocument]
    tree_usage: TreeUsageDocument = Field(description="Of this job and all jobs below it; `usage` is its own part.")
    warnings: list[WarningDocument] = Field(
        description="What its agent missed, and went on without. When it is submitted, also doubts about its plan."
    )
    budget: BudgetDocument | None = Field(description="What the whole tree of jobs may use, and has used.")
    retry: RetryDocument | None
    model_settings: dict[str, Any] | None = Field(description="The settings of its model calls, as they were sent.")
    parts: list[InputPartDocument] = Field(description="Images, files and audio beside `input`.")


class JobPage(PageDocument[JobSummary]):
    """Jobs, newest first; `next_cursor` is null on the last page."""


class ToolList(Answer):
    """The tools that workers have published, by name."""

    items: list[ToolDefinition]


class PlacedPlanError(PlanErrorDocument):
    """One defect of a plan, with its place in the document that was sent."""

    place: str = Field(description="A JSON pointer into the plan; empty for the plan as a whole.")


class ValidationResult(Answer):
    """Whether a plan could run, and everything that is wrong with it.

    `dropped` steps come after a question or an `abort` of typed steps: a model's plan is made anew after it, a
    caller's is refused.
    """

    valid: bool
    form: PlanForm = Field(description="The form in which the plan is written.")
    dropped: int
    errors: list[PlacedPlanError]
    warnings: list[WarningDocument] = Field(
        description="What the plan says that its author seldom means, such as a reference in a text without braces."
    )
    errors_left_out: int | None = Field(default=None, description="How many more there are; absent for none.")
