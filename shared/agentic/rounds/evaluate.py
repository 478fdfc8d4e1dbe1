"""What a `loop:` block decides between two rounds, from the rounds that are over. Pure: the stage carries it out.

The rules' calls run as rounds of their own: those of `on_error` with that source, and the loop goes on or is aborted
after them; those of `after` last of all. Values in rules are data: nothing in them is a reference.
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
"""Who made the plan of a round whose calls come from the block's rules."""

_NOT_RUN = frozenset({SKIPPED, DUPLICATE_OF})


@dataclass(frozen=True, slots=True)
class RuleCall:
    """A call that a rule makes; its arguments hold no references."""

    tool: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ErrorReaction:
    """What follows the failed steps of a round: calls, and then why the job is aborted (None: it goes on)."""

    calls: Sequence[RuleCall] = ()
    abort_reason: str | None = None


def loop_variables(rounds: Sequence[RoundRecord], *, query: str, own: Mapping[str, Any]) -> dict[str, Any]:
    """Return what expressions look into.

    `results` has one entry for each step of all rounds, in order: `{index, name, args, result, error, code, round}`,
    where `error` is the message and `code` the error's code, both null on success. `plan` is that of the last round
    that no rule made: `{reasoning, steps: [{index, name, args}]}`. `round` says how many such rounds are over, `vars`
    are the block's `own`, `query` is the job's input.
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
    """Return whether the loop ends by its own condition; raises `InvalidArguments` for one that has no value."""
    steps = StepsLeft()
    return any(_holds(text, variables, f"/until/{number}", steps) for number, text in enumerate(block.until or ()))


def errors_matched(block: LoopBlock, last: RoundRecord, variables: Mapping[str, Any]) -> ErrorReaction:
    """Return what the rules of `on_error` say about the failed steps of a round, in the order of its steps.

    For each step the first rule that holds counts. A round that rules made has no reaction, for it would never end.
    Raises `InvalidArguments` for an expression that has no value.
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
    """Return the calls that follow the last round; raises `InvalidArguments` for an expression that has no value."""
    steps = StepsLeft()
    return [
        RuleCall(rule.tool, _rendered(rule.with_, variables, f"/after/{place}/with", steps))
        for place, rule in enumerate(block.after)
        if rule.when is None or _holds(rule.when, variables, f"/after/{place}/when", steps)
    ]


def rule_defects(block: LoopBlock, tools: Mapping[str, ToolDefinition]) -> list[Finding]:
    """Return what is wrong with the arguments of a block's rules, as far as these are known before they are rendered.

    `tools` maps registered names to definitions; of a tool that is not among them nothing is known.
    """
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
    """Return the block's prompt template, None for planq's own.

    Raises `InvalidArguments` where the skill that it names was not there when the job was made.
    """
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
