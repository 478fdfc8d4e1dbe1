"""Decide by a `loop:` block between two rounds, from the finished rounds.

The rules' calls run as rounds of their own: first `on_error`, after which the loop goes on or aborts, and `after`
last. Values in rules are data without references.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planq.shared.agentic.rounds.block import LoopBlock
from planq.shared.agentic.rounds.compile import with_defaults
from planq.shared.agentic.rounds.expressions import ExpressionFailed, StepsLeft, holds, rendered, without_expressions
from planq.shared.agentic.rounds.guard import DUPLICATE_OF, SKIPPED
from planq.shared.agentic.schema.schemas import UNKNOWN, Steps, compile_schema
from planq.shared.agentic.source import Finding
from planq.shared.agentic.tools.definition import ToolDefinition
from planq.shared.agentic.tools.names import NameIndex
from planq.shared.agentic.tools.scoping import unscoped
from planq.shared.kernel.steps import RoundRecord
from planq.shared.platform.errors import InvalidArguments, capped
from planq.shared.platform.values.pointers import from_pointer

ON_ERROR_SOURCE = "on_error"
AFTER_SOURCE = "after"
RULE_SOURCES = frozenset({ON_ERROR_SOURCE, AFTER_SOURCE})
"""Sources of rounds whose calls come from the block's rules."""

_NOT_RUN = frozenset({SKIPPED, DUPLICATE_OF})


@dataclass(frozen=True, slots=True)
class RuleCall:
    """A call that a rule makes; its arguments hold no references."""

    tool: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ErrorReaction:
    """What follows the failed steps of a round: calls, and the reason to abort (None: go on)."""

    calls: Sequence[RuleCall] = ()
    abort_reason: str | None = None


def loop_variables(rounds: Sequence[RoundRecord], *, query: str, own: Mapping[str, Any]) -> dict[str, Any]:
    """Return the variables of expressions.

    `results`: for each step of all rounds `{index, name, args, result, error, code, round}`; `error` (its message)
    and `code` are null on success. `plan`: `{reasoning, steps: [{index, name, args}]}` of the last round that no rule
    made; `round`: the number of such rounds. `vars`: the block's `own`. `query`: the job's input.
    """
    planned = [record for record in rounds if record.source not in RULE_SOURCES]
    return {
        "results": [_result(record, number) for record in rounds for number in range(len(record.results))],
        "plan": _plan(planned[-1]) if planned else {"reasoning": None, "steps": []},
        "round": len(planned),
        "vars": dict(own),
        "query": query,
    }


def until_holds(block: LoopBlock, variables: Mapping[str, Any]) -> bool:
    """Return whether the loop's own condition ends it; raises `InvalidArguments` if one has no value."""
    steps = StepsLeft()
    return any(_holds(text, variables, f"/until/{number}", steps) for number, text in enumerate(block.until or ()))


def errors_matched(block: LoopBlock, last: RoundRecord, variables: Mapping[str, Any]) -> ErrorReaction:
    """Return the reaction of `on_error` to a round: for each failed step the first rule that holds.

    Rounds made by rules have no reaction, or the loop would never end. Raises `InvalidArguments`.
    """
    if last.source in RULE_SOURCES:
        return ErrorReaction()
    calls: list[RuleCall] = []
    reason: str | None = None
    steps = StepsLeft()
    for number, result in enumerate(last.results):
        if result.error is None or result.code in _NOT_RUN:
            continue
        step = _result(last, number)
        known = {**variables, "step": step, "error": step["error"]}
        for place, rule in enumerate(block.on_error):
            if rule.when is not None and not _holds(rule.when, known, f"/on_error/{place}/when", steps):
                continue
            if rule.tool is not None:
                calls.append(RuleCall(rule.tool, _rendered(rule.with_, known, f"/on_error/{place}/with", steps)))
            if rule.then == "abort" and reason is None:
                reason = f"${step['index']} ({step['name']}) failed: {capped(str(step['error']), 500)}"
            break
    return ErrorReaction(calls, reason)


def after_steps(block: LoopBlock, variables: Mapping[str, Any]) -> list[RuleCall]:
    """Return the calls that follow the last round; raises `InvalidArguments`."""
    steps = StepsLeft()
    return [
        RuleCall(rule.tool, _rendered(rule.with_, variables, f"/after/{place}/with", steps))
        for place, rule in enumerate(block.after)
        if rule.when is None or _holds(rule.when, variables, f"/after/{place}/when", steps)
    ]


def rule_defects(block: LoopBlock, tools: Mapping[str, ToolDefinition]) -> list[Finding]:
    """Return the defects of rules' arguments that are known before rendering; unknown tools have none."""
    index = NameIndex(tools)
    rules = [
        *((("after", number, "with"), rule.tool, rule.with_) for number, rule in enumerate(block.after)),
        *((("on_error", number, "with"), rule.tool, rule.with_) for number, rule in enumerate(block.on_error)),
    ]
    found: list[Finding] = []
    steps = Steps()
    for path, name, given in rules:
        known = [] if name is None else index.candidates(name)
        if len(known) == 1:
            tool = tools[known[0]]
            arguments = unscoped(
                with_defaults(without_expressions(given, UNKNOWN), tool.input_schema), tool.user_scoped
            )
            broken = compile_schema(tool.input_schema).violations(arguments, partial=True, steps=steps)
            found += [((*path, *from_pointer(one.pointer)), one.message) for one in broken]
    return found


def prompt_text(block: LoopBlock) -> str | None:
    """Return the block's prompt, None for planq's own; raises `InvalidArguments` if its skill was missing."""
    if block.prompt is None:
        return None
    if block.prompt.text is None:
        named = repr(capped(str(block.prompt.name), 80))
        raise InvalidArguments(f"loop/prompt: the skill {named} was not stored when the job was made; store it first")
    return block.prompt.text


def _holds(text: str, variables: Mapping[str, Any], place: str, steps: StepsLeft) -> bool:
    try:
        return holds(text, variables, steps)
    except ExpressionFailed as error:
        raise InvalidArguments(f"loop{place}: {error}") from error


def _rendered(value: Any, variables: Mapping[str, Any], place: str, steps: StepsLeft) -> Any:
    try:
        return rendered(value, variables, steps)
    except ExpressionFailed as error:
        raise InvalidArguments(f"loop{place}: {error}") from error


def _result(record: RoundRecord, number: int) -> dict[str, Any]:
    result = record.results[number]
    return {
        "index": record.first_index + number,
        "name": result.tool_name,
        "args": dict(result.arguments),
        "result": result.output,
        "error": result.error,
        "code": result.code,
        "round": record.number,
    }


def _plan(record: RoundRecord) -> dict[str, Any]:
    body = record.plan if isinstance(record.plan, Mapping) else {}
    calls = body.get("calls")
    steps = [
        {"index": record.first_index + number, "name": call.get("tool_name"), "args": call.get("arguments") or {}}
        for number, call in enumerate(calls if isinstance(calls, list) else ())
        if isinstance(call, Mapping)
    ]
    return {"reasoning": body.get("reasoning"), "steps": steps}
