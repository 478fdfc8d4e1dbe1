"""The `loop:` block: custom rounds of a job, in an agent's document and in a request.

    loop:
      max_rounds: 5
      prompt: |
        Plan the next calls for {{query}}. {{reference}}
      tools: {allow: [web_fetch, web_search], block: [http_fetch]}
      policy: {"mail_*": ask}
      until: length(results[?!error]) >= `3`
      after:
        - {tool: write_report, with: {title: Found, sections: "{{ results[].result }}"}}
      on_error:
        - {when: "step.code == 'timeout'", tool: notify, with: {text: "{{ step.name }} is late"}, then: abort}

`read_block` reports every defect with its path. `merged` joins the blocks of an agent and of a request, which can
only narrow the agent's. `evaluate.py` evaluates the expressions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from itertools import islice
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, WithJsonSchema

from planq.shared.agentic.plan.document import WHOLE
from planq.shared.agentic.rounds.expressions import expression_defect, template_defects
from planq.shared.agentic.schema.schemas import MAX_DEPTH
from planq.shared.agentic.source import DocumentPath, Finding
from planq.shared.agentic.tools.names import MAX_AGENT_NAME, to_registry
from planq.shared.agentic.tools.policy import POLICY_ENTRY_SCHEMA, Rule, read_policy_entry
from planq.shared.kernel.limits import Limits
from planq.shared.kernel.states import AskedOf, Strategy
from planq.shared.platform.errors import InvalidRequest, capped
from planq.shared.platform.values.describe import excerpt, is_deeper_than, sentence_list
from planq.shared.platform.values.pointers import path_pointer

MAX_BLOCK_BYTES = 64 * 1024
MAX_RULES = 20
MAX_PROMPT_CHARS = 32 * 1024

LOOP_VARIABLES = ("plan", "query", "results", "round", "vars")
"""Root names in expressions of a block."""

ERROR_VARIABLES = (*LOOP_VARIABLES, "error", "step")
"""Root names in `on_error`: also the failed step and its error."""

PROMPT_VARIABLES = ("context", "query", "reference", "results", "round", "rounds_left", "tools", "vars")
"""Names that a prompt template may insert as `{{name}}`."""

_PLACEHOLDER = re.compile(r"\{\{(.*?)(\}\}|\Z)", re.DOTALL)
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9_.\-]{{0,{MAX_AGENT_NAME - 1}}}")
_MOST_LISTED = 10
_MOST_SPOKEN = 20

_CLOSED = ConfigDict(frozen=True, extra="forbid", strict=True, populate_by_name=True)
_Count = Annotated[int, Field(gt=0, lt=2**31), WHOLE]
_Seconds = Annotated[float, Field(gt=0, lt=2**31, allow_inf_nan=False)]
_ToolName = Annotated[str, Field(min_length=1, max_length=200)]
_ToolNames = Annotated[list[_ToolName], Field(max_length=1_000)]
_PolicyEntry = Annotated[Any, AfterValidator(read_policy_entry), WithJsonSchema(POLICY_ENTRY_SCHEMA)]
_Condition = Annotated[str, Field(description="An expression (JMESPath), at most 1 KiB.")]


def _template_form(value: Any) -> Any:
    """Return a prompt in its one form: a text that could be a name is a name."""
    if not isinstance(value, str):
        return value
    return {"name": value} if _NAME.fullmatch(value) else {"text": value}


class PromptTemplate(BaseModel):
    """The prompt for the next plan: a `text`, or the `name` of a stored skill whose text the job gets."""

    model_config = _CLOSED

    name: Annotated[str, Field(pattern=f"^{_NAME.pattern}$")] | None = None
    text: Annotated[str, Field(min_length=1, max_length=MAX_PROMPT_CHARS)] | None = None


class ToolChoice(BaseModel):
    """The tools that the planner sees: those of `allow` (null: all of the job's) except those of `block`."""

    model_config = _CLOSED

    allow: _ToolNames | None = None
    block: _ToolNames = []


class GuardBounds(BaseModel):
    """Bounds from which repeated calls are blocked."""

    model_config = _CLOSED

    consecutive_limit: Annotated[int, Field(ge=2, le=1_000), WHOLE] | None = None
    window_size: Annotated[int, Field(ge=4, le=1_000), WHOLE] | None = None
    window_freq_limit: Annotated[int, Field(ge=1, le=1_000), WHOLE] | None = None


class AfterRule(BaseModel):
    """A call after the last round, if `when` is true or missing."""

    model_config = _CLOSED

    tool: _ToolName
    when: _Condition | None = None
    with_: Annotated[dict[str, Any], Field(alias="with")] = {}


class ErrorRule(BaseModel):
    """The reaction to a failed step, if `when` is true or missing: maybe a call, and whether the job continues."""

    model_config = _CLOSED

    when: _Condition | None = None
    tool: _ToolName | None = None
    with_: Annotated[dict[str, Any], Field(alias="with")] = {}
    then: Literal["continue", "abort"] = "continue"


def _conditions(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class LoopBlock(BaseModel):
    """How a job's rounds are planned, bounded and ended. Missing fields use the server's or the agent's values."""

    model_config = _CLOSED

    max_rounds: _Count | None = Field(None, description="Maximum rounds; can only lower the server's maximum.")
    timeout_seconds: _Seconds | None = Field(
        None, description="Maximum time of all rounds, without waits for people."
    )
    prompt: Annotated[
        PromptTemplate | None, BeforeValidator(_template_form, json_schema_input_type=PromptTemplate | str | None)
    ] = Field(None, description="The planner's prompt: a template, or the name of a stored skill.")
    tools: ToolChoice | None = Field(None, description="The tools that the planner sees.")
    policy: dict[_ToolName, _PolicyEntry] | None = Field(
        None, description="By tool, with * and ?: call at once, after a person agrees, or never."
    )
    guard: GuardBounds | None = Field(None, description="Bounds from which repeated calls are blocked.")
    until: Annotated[
        list[_Condition] | None,
        Field(max_length=MAX_RULES),
        BeforeValidator(_conditions, json_schema_input_type=list[_Condition] | _Condition | None),
    ] = Field(None, description="The loop ends after a round if one of these is true.")
    after: Annotated[list[AfterRule], Field(max_length=MAX_RULES)] = Field(
        [], description="Calls after the last round, in this order."
    )
    on_error: Annotated[list[ErrorRule], Field(max_length=MAX_RULES)] = Field(
        [], description="Reactions to failed steps; the first rule that matches applies."
    )
    vars: dict[str, Any] = Field({}, description="Values for expressions and templates, as `vars`.")
    planner: Annotated[str, Field(min_length=1, max_length=200)] | None = Field(
        None, description="Name of an installed planner; by default planq's own."
    )

    @property
    def reads_results(self) -> bool:
        """Whether expressions or an own planner read the outputs of steps."""
        return bool(self.until or self.after or self.on_error or self.planner)

    def to_json(self) -> dict[str, Any]:
        """Return the stored form, without unset fields."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_defaults=True)

    def tool_names(self, offered: Sequence[str]) -> list[str]:
        """Return the `offered` registered names that the planner may use, in their order."""
        if self.tools is None:
            return list(offered)
        allowed = None if self.tools.allow is None else set(map(to_registry, self.tools.allow))
        blocked = set(map(to_registry, self.tools.block))
        folded = {name: to_registry(name) for name in offered}
        return [n for n, one in folded.items() if one not in blocked and (allowed is None or one in allowed)]

    def lowered(self, limits: Limits, strategy: Strategy = Strategy.LOOP) -> Limits:
        """Return the job's limits, lowered by the block's."""
        own = self._bounds()
        if strategy.is_by_turns and self.timeout_seconds is not None:
            own["plan_timeout_seconds"] = self.timeout_seconds  # which bounds all its turns
        return limits.lowered({name: min(bound, getattr(limits, name)) for name, bound in own.items()})

    def above(self, limits: Limits) -> list[Finding]:
        """Return the defects of a request's block whose bounds exceed the server's `limits`."""
        places = {"max_rounds": "max_rounds", "loop_timeout_seconds": "timeout_seconds"}
        return [
            defect
            for name, own in self._bounds().items()
            for defect in _above((places[name],), getattr(limits, name), own)
        ]

    def _bounds(self) -> dict[str, float]:
        own = {"max_rounds": self.max_rounds, "loop_timeout_seconds": self.timeout_seconds}
        return {name: bound for name, bound in own.items() if bound is not None}

    def called(self) -> list[tuple[DocumentPath, str]]:
        """Return the tools that the block names one by one, with their paths."""
        tools = self.tools or ToolChoice()
        return [
            *((("tools", "allow", number), name) for number, name in enumerate(tools.allow or ())),
            *((("after", number, "tool"), rule.tool) for number, rule in enumerate(self.after)),
            *((("on_error", number, "tool"), rule.tool) for number, rule in enumerate(self.on_error) if rule.tool),
        ]

    def of_loops_alone(self) -> list[str]:
        return [name for name in self.to_json() if name not in ("tools", "policy", "guard")]


def read_block(raw: Any) -> tuple[LoopBlock | None, list[Finding]]:
    """Read a block from decoded JSON; return it, or None, and every defect by path."""
    if not isinstance(raw, Mapping):
        return None, [((), f"expected an object with the fields of a loop, found {excerpt(raw)}")]
    if is_deeper_than(raw, MAX_DEPTH):
        return None, [((), f"nested more than {MAX_DEPTH} levels deep")]
    try:
        text = json.dumps(raw, allow_nan=False, ensure_ascii=False)
        size = len(text.encode())
    except (TypeError, ValueError) as error:
        return None, [((), f"expected JSON: {capped(str(error), 200)}")]
    if size > MAX_BLOCK_BYTES:
        return None, [((), f"the block has {size} bytes of JSON; at most {MAX_BLOCK_BYTES} are taken")]
    found: list[Finding] = []
    block: LoopBlock | None = None
    try:
        block = LoopBlock.model_validate(raw)
    except ValidationError as error:
        found += [_defect(item) for item in error.errors(include_url=False, include_context=False)]
    # Bounded: a block can have thousands, and each takes a while to describe.
    found += islice(_spoken_defects(raw), _MOST_SPOKEN)
    return (None if found else block), found


def parse_block(raw: Any, name: str = "the loop block") -> LoopBlock:
    """Return the block; raises `InvalidRequest` whose `details["errors"]` has every defect."""
    block, found = read_block(raw)
    if block is None:
        raise block_refused(found, name)
    return block


def block_refused(found: Sequence[Finding], name: str = "the loop block") -> InvalidRequest:
    """Return the error for these defects, each with its JSON pointer."""
    shown = [(path_pointer(path), message) for path, message in found]
    listed = sentence_list([f"{place}: {message}" if place else message for place, message in shown], _MOST_LISTED)
    return InvalidRequest(
        f"{name} is not valid: {listed}", errors=[{"path": place, "message": message} for place, message in shown]
    )


def _defect(item: Mapping[str, Any]) -> Finding:
    found = "" if item["type"] in ("missing", "extra_forbidden") else f"; found {excerpt(item['input'])}"
    message = "unknown field" if item["type"] == "extra_forbidden" else item["msg"]
    return tuple(part for part in item["loc"] if part != "[key]"), f"{message}{found}"


def _spoken_defects(raw: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield the defects of expressions and templates, even if other parts of the block are broken."""
    until = raw.get("until")
    for path, text in [(("until",), until)] if isinstance(until, str) else _items(raw, "until"):
        if isinstance(text, str):
            yield from _expression(path, text, LOOP_VARIABLES)
    for key, names in (("after", LOOP_VARIABLES), ("on_error", ERROR_VARIABLES)):
        for path, rule in _items(raw, key):
            if isinstance(rule, Mapping):
                yield from _rule(path, rule, names)
    yield from ((("prompt", *path), message) for path, message in _prompt(raw.get("prompt")))


def _items(raw: Mapping[str, Any], key: str) -> list[tuple[DocumentPath, Any]]:
    listed = raw.get(key)
    return [((key, index), item) for index, item in enumerate(listed)] if isinstance(listed, list) else []


def _rule(path: DocumentPath, rule: Mapping[str, Any], names: Sequence[str]) -> Iterator[Finding]:
    if isinstance(rule.get("when"), str):
        yield from _expression((*path, "when"), rule["when"], names)
    for place, message in template_defects(rule.get("with"), names):
        yield (*path, "with", *place), message
    if "with" in rule and "tool" not in rule:
        yield (*path, "with"), "expected a tool for it"
    if path[0] == "on_error" and "tool" not in rule and rule.get("then") != "abort":
        yield path, "expected a tool, or then: abort; this rule does nothing"


def _expression(path: DocumentPath, text: str, names: Sequence[str]) -> Iterator[Finding]:
    defect = expression_defect(text, names)
    if defect is not None:
        yield path, defect


def _prompt(prompt: Any) -> Iterator[Finding]:
    given = _template_form(prompt)
    if not isinstance(given, Mapping):
        return
    if given.get("name") is None and given.get("text") is None:
        yield (), "expected a text, or the name of a stored skill"
    if isinstance(given.get("text"), str):
        at: DocumentPath = () if isinstance(prompt, str) else ("text",)
        yield from ((at, message) for message in prompt_defects(given["text"]))


def prompt_defects(text: str) -> Iterator[str]:
    """Yield the braces of a prompt template that insert no known name."""
    known = ", ".join(PROMPT_VARIABLES)
    for match in _PLACEHOLDER.finditer(text):
        name = match[1]
        if not match[2]:
            yield f"{excerpt(match[0])} has no closing }}}}"
        elif name not in PROMPT_VARIABLES:
            yield f"{excerpt(match[0])} inserts nothing: write {{{{name}}}} without blanks; known names are {known}"


def rendered_prompt(text: str, values: Mapping[str, str]) -> str:
    """Fill in a prompt template in one pass; precondition: no `prompt_defects`, all `PROMPT_VARIABLES`."""
    return _PLACEHOLDER.sub(lambda match: values[match[1]], text)


def merged(agent: LoopBlock | None, request: LoopBlock | None) -> LoopBlock | None:
    """Return the block of a job: the agent's, narrowed by the request's; None without either.

    Numbers can only be lowered (`window_size` raised), allowed tools intersect, blocked tools and rules unite, the
    stricter policy wins; the request's prompt, planner and variables win. Raises `InvalidRequest` naming each number
    that is looser than the agent's.
    """
    if agent is None or request is None:
        return agent or request
    found = list(_loosened(agent, request))
    if found:
        raise block_refused(found)
    return LoopBlock(
        max_rounds=request.max_rounds or agent.max_rounds,
        timeout_seconds=request.timeout_seconds or agent.timeout_seconds,
        prompt=request.prompt or agent.prompt,
        tools=_tools(agent.tools, request.tools),
        policy=_policy(agent.policy, request.policy),
        guard=_guard(agent.guard, request.guard),
        until=list(dict.fromkeys([*(agent.until or ()), *(request.until or ())])) or None,
        after=[*agent.after, *request.after],
        on_error=[*agent.on_error, *request.on_error],
        vars={**agent.vars, **request.vars},
        planner=request.planner or agent.planner,
    )


def _loosened(agent: LoopBlock, request: LoopBlock) -> Iterator[Finding]:
    for name in ("max_rounds", "timeout_seconds"):
        yield from _above((name,), getattr(agent, name), getattr(request, name))
    if agent.guard is None or request.guard is None:
        return
    for name in ("consecutive_limit", "window_freq_limit"):
        yield from _above(("guard", name), getattr(agent.guard, name), getattr(request.guard, name))
    kept, wanted = agent.guard.window_size, request.guard.window_size
    if kept is not None and wanted is not None and wanted < kept:
        yield ("guard", "window_size"), f"a request can only raise it; expected at least {kept}, found {wanted}"


def _above(path: DocumentPath, kept: float | None, wanted: float | None) -> Iterator[Finding]:
    if kept is not None and wanted is not None and wanted > kept:
        yield path, f"a request can only lower it; expected at most {kept:.15g}, found {wanted:.15g}"


def _tools(agent: ToolChoice | None, request: ToolChoice | None) -> ToolChoice | None:
    if agent is None or request is None:
        return agent or request
    block = list(dict.fromkeys([*agent.block, *request.block]))
    if agent.allow is None or request.allow is None:
        return ToolChoice(allow=agent.allow if request.allow is None else request.allow, block=block)
    wanted = set(map(to_registry, request.allow))
    return ToolChoice(allow=[name for name in agent.allow if to_registry(name) in wanted], block=block)


def _policy(agent: Mapping[str, Any] | None, request: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if agent is None or request is None:
        return dict(agent or request or {}) or None
    given = agent, request
    return {
        pattern: reduce(
            Rule.and_, [Rule.of(one[pattern], AskedOf.ASKER) for one in given if pattern in one]
        ).to_entry()
        for pattern in {**agent, **request}
    }


def _guard(agent: GuardBounds | None, request: GuardBounds | None) -> GuardBounds | None:
    if agent is None or request is None:
        return agent or request
    return GuardBounds(**{**agent.model_dump(exclude_none=True), **request.model_dump(exclude_none=True)})
