"""Find a structured answer in a model's text tolerantly, and check it strictly (docs/decisions.md, D5)."""

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
"""Maximum length of the invalid text that the error and the repairing model get."""

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
    """A text without a valid answer: all its defects, and the text, capped."""

    errors: tuple[str, ...]
    raw: str

    def failure(self) -> InvalidOutput:
        """Return the error that fails the job; its details have the defects and the text."""
        listed = "; ".join(self.errors[:5])
        return InvalidOutput(
            f"the agent's answer does not satisfy its schema: {listed}", errors=list(self.errors), raw=self.raw
        )


def read_answer(text: str, schema: Mapping[str, Any]) -> ValidAnswer | InvalidAnswer:
    """Return the first object in the untrusted `text` that satisfies `schema`, or the defects; never raises."""
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
    """Turn objects in `content` of direct responses into JSON text, which the planning tool requires."""
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
    return tuple(f"{one.pointer or 'the object'}: {one.message}" for one in violations(schema, value))
