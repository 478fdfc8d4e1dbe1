"""The guard against loops: which of a model's calls are repetitions (docs/decisions.md, D17, D29).

It compares a call with those that models made in earlier rounds, blocked ones included, and with those before it in
the plan. A call is blocked if

- it would be the `consecutive_limit`-th same call in a row;
- it occurs `window_freq_limit` times among the last `window_size` calls;
- with it, the last `window_size` calls alternate between exactly two.

Calls are the same if tool and JSON arguments are; the order of keys does not count. Repeatable tools and plans that
no model made are ignored.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from planq.shared.agentic.tools.definition import ToolDefinition
from planq.shared.kernel.steps import RoundRecord, StepResult

DUPLICATE_CALL_BLOCKED: Final = "duplicate_call_blocked"
"""Code of a step that the guard blocked."""

DUPLICATE_OF: Final = "duplicate_of"
"""Code of a step that repeats an earlier one of its own plan, `{"step": N}` in its details."""

SKIPPED: Final = "skipped"
"""Code of a step that was not called because it needs an output that does not exist."""

MODEL_SOURCE: Final = "model"
CALLER_SOURCE: Final = "caller"
"""Values of `RoundRecord.source`."""


@dataclass(frozen=True, slots=True)
class GuardLimits:
    """The limits of repetition; see the module."""

    consecutive_limit: int = 3
    window_size: int = 8
    window_freq_limit: int = 4


@dataclass(frozen=True, slots=True)
class PastCall:
    """A call of an earlier round; `key` is its `call_key`, `step` its index in the job."""

    key: str
    step: int
    has_succeeded: bool


@dataclass(frozen=True, slots=True)
class GuardVerdict:
    """The verdict on a call; `output_of` is the step with the last successful output of the same call."""

    key: str
    is_blocked: bool
    output_of: int | None


def call_key(tool_name: str, arguments: Any) -> str:
    """Return a text that is equal for equal calls only."""
    return f"{tool_name}({canonical_arguments(arguments)})"


def canonical_arguments(arguments: Any) -> str:
    """Return arguments as sorted compact JSON; `""` for null, `{}` and `""`; numbers count by value."""
    if arguments in (None, "") or arguments == {}:
        return ""
    return json.dumps(_by_value(arguments), sort_keys=True, separators=(",", ":"), default=str)


def past_calls(rounds: Sequence[RoundRecord], tools: Mapping[str, ToolDefinition]) -> list[PastCall]:
    """Return the models' calls of tools that are not repeatable, without skipped ones and duplicates."""
    return [
        call
        for record in rounds
        if record.source == MODEL_SOURCE
        for name, call in record.memo.get("calls") or _calls(record)
        if (tool := tools.get(name)) is None or not tool.repeatable
    ]


def _calls(record: RoundRecord) -> Sequence[tuple[str, PastCall]]:
    found = record.memo["calls"] = [
        (one.tool_name, PastCall(call_key(one.tool_name, one.arguments), one.index, one.succeeded))
        for one in called(record)
    ]
    return found


def judged(
    proposed: Sequence[tuple[str, Any]], history: Sequence[PastCall], limits: GuardLimits
) -> list[GuardVerdict]:
    """Return a verdict for each call (registered name, arguments) of a plan, in list order.

    Unresolved references are compared as written. Precondition: no tool is repeatable, no duplicates of the plan.
    """
    last_output = {call.key: call.step for call in history if call.has_succeeded}
    keys = [call.key for call in history[-limits.window_size :]]
    keys = keys if limits.consecutive_limit <= limits.window_size else [call.key for call in history]
    verdicts: list[GuardVerdict] = []
    for tool_name, arguments in proposed:
        key = call_key(tool_name, arguments)
        verdicts.append(GuardVerdict(key, _is_repetition(key, keys, limits), last_output.get(key)))
        keys.append(key)
    return verdicts


def is_stalled(rounds: Sequence[RoundRecord]) -> bool:
    """True if both of the last two rounds only had calls, and all were blocked."""
    return len(rounds) >= 2 and all(map(_is_circle, rounds[-2:]))


def called(record: RoundRecord) -> Iterator[StepResult]:
    """Yield the results of a round's tool calls that were made or blocked."""
    for result, kind in zip(record.results, _kinds(record), strict=False):
        if kind is None and result.code not in (SKIPPED, DUPLICATE_OF):
            yield result


def is_repeatable(tool: ToolDefinition | None) -> bool:
    """True if the guard ignores the tool; unknown tools are not repeatable."""
    return tool is not None and tool.repeatable


def _is_circle(record: RoundRecord) -> bool:
    if record.source != MODEL_SOURCE or any(kind not in (None, "noop") for kind in _kinds(record)):
        return False
    codes = [result.code for result in called(record)]
    return bool(codes) and all(code == DUPLICATE_CALL_BLOCKED for code in codes)


def _kinds(record: RoundRecord) -> list[str | None]:
    """Return each step's kind, None for a call of a tool."""
    body = record.plan if isinstance(record.plan, Mapping) else {}
    calls = body.get("calls")
    kinds = [call.get("kind") if isinstance(call, Mapping) else None for call in calls or ()]
    return kinds + [None] * (len(record.results) - len(kinds))


def _is_repetition(key: str, before: Sequence[str], limits: GuardLimits) -> bool:
    in_a_row = before[-(limits.consecutive_limit - 1) :]
    if len(in_a_row) == limits.consecutive_limit - 1 and set(in_a_row) == {key}:
        return True
    window = before[-limits.window_size :]
    if window.count(key) >= limits.window_freq_limit:
        return True
    last = [*window[-(limits.window_size - 1) :], key]
    return len(last) == limits.window_size and len(set(last)) == 2 and len({*last[::2]}) == len({*last[1::2]}) == 1


def _by_value(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        return {str(key): _by_value(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_by_value(item) for item in value]
    return value
