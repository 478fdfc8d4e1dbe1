"""A structured answer in a model's text: found tolerantly, checked strictly.

Models put JSON into fences and sentences around it, so it is looked for as plans are
(docs/decisions.md, D5). The object must satisfy the agent's schema to the letter.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from planq.shared.agentic.models.exchange import ToolCallRequest
from planq.shared.agentic.plan.interpret import DIRECT, PLANNING_TOOL_NAME, decoded
from planq.shared.agentic.schema.schemas import violations
from planq.shared.platform.errors import InvalidOutput, capped
from planq.shared.platform.values.decoding import decode
from planq.shared.platform.values.describe import excerpt
from planq.shared.platform.values.encoding import encode

MAX_RAW_CHARS = 20_000
"""How much of a text that is no answer is kept with the error, and shown to the model that shall repair it."""

_FENCE = re.compile(r"```[^\n`]*\n(.*?)```", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ValidAnswer:
    """An object that satisfies the schema."""

    value: dict[str, Any]

    @property
    def text(self) -> str:
        return encode(self.value).decode()


@dataclass(frozen=True, slots=True)
class InvalidAnswer:
    """A text that is no answer: every way in which it is none, and the text itself, capped."""

    errors: tuple[str, ...]
    raw: str

    def failure(self) -> InvalidOutput:
        """Return the error with which the job ends: its details keep the defects and the text."""
        listed = "; ".join(self.errors[:5])
        return InvalidOutput(
            f"the agent's answer does not satisfy its schema: {listed}", errors=list(self.errors), raw=self.raw
        )


def read_answer(text: str, schema: Mapping[str, Any]) -> ValidAnswer | InvalidAnswer:
    """Return the object that `text` holds when it satisfies `schema`, else why it does not.

    The whole text counts first, then what stands in fences, then its outermost `{…}`; of several objects the first
    that satisfies the schema is the answer. The text is untrusted; nothing raises.
    """
    rejected: tuple[str, ...] = ()
    for candidate in _candidates(text):
        try:
            value = decode(candidate)
        except (ValueError, RecursionError):
            continue
        errors = _defects(value, schema)
        if not errors:
            return ValidAnswer(value)
        rejected = rejected or errors
    found = "nothing" if not text.strip() else excerpt(text.strip())
    return InvalidAnswer(rejected or (f"expected a JSON object, found {found}",), capped(text, MAX_RAW_CHARS))


def with_answers_as_text(calls: Sequence[ToolCallRequest]) -> list[ToolCallRequest]:
    """Return a planner's calls with answers that it gave as objects turned into the texts that they should be.

    Models that know an answer's schema tend to put the object itself into `content` of a direct response.
    """
    return [_with_answer_as_text(call) for call in calls]


def _with_answer_as_text(call: ToolCallRequest) -> ToolCallRequest:
    arguments = decoded(call.arguments)
    if call.name != PLANNING_TOOL_NAME or not isinstance(arguments, dict) or arguments.get("type") != DIRECT:
        return call
    content = arguments.get("content")
    if not isinstance(content, dict):
        return call
    return replace(call, arguments={**arguments, "content": json.dumps(content)})


def _candidates(text: str) -> Iterator[str]:
    yield text
    yield from (match[1] for match in _FENCE.finditer(text))
    start, end = text.find("{"), text.rfind("}")
    if 0 <= start < end:
        yield text[start : end + 1]


def _defects(value: Any, schema: Mapping[str, Any]) -> tuple[str, ...]:
    if not isinstance(value, dict):
        return (f"expected a JSON object, found {excerpt(value)}",)
    try:
        encode(value)
    except (ValueError, RecursionError):
        return ("the object holds a character that cannot be stored, or is nested too deeply",)
    return _violations(value, schema)


def _violations(value: Mapping[str, Any], schema: Mapping[str, Any]) -> tuple[str, ...]:
    found: Sequence[Any] = violations(schema, value)
    return tuple(f"{one.pointer or 'the object'}: {one.message}" for one in found)
