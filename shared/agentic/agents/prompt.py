"""The text that an agent's document becomes at the head of its conversations.

Description, extension, "## Tool Notes", and in conversational mode "## Thinking Structure": the properties as an
outline that guides the model's reasoning and is no form to fill in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from planq.shared.agentic.schema.schemas import MAX_DEPTH

_GUIDANCE = (
    "Let these fields guide what you look for and keep in mind. They are for your reasoning only.",
    "Answer in plain conversational text. Do NOT output field names, YAML or JSON.",
)


def system_prompt(
    texts: Sequence[str],
    notes: Sequence[tuple[str, str | None]],
    properties: Mapping[str, Any],
    required: Sequence[str] = (),
    definitions: Any = None,
) -> str:
    """Return the parts that are not blank, one blank line between them.

    `notes` are tools with the notes on them; `properties` (none in structured mode) are the thinking aides,
    whose `$ref`s lead into `definitions`.
    """
    parts = [text.strip() for text in texts if text.strip()]
    if notes:
        parts.append("\n".join(["## Tool Notes", *(f"- **{name}**: {note}" for name, note in notes)]))
    if properties:
        known = definitions if isinstance(definitions, Mapping) else {}
        outline = _Outline(known).lines(properties, required)
        head, rule = _GUIDANCE
        parts.append("\n".join(["## Thinking Structure", "", head, "", "```yaml", *outline, "```", "", rule]))
    return "\n\n".join(parts)


class _Outline:
    """Writes properties as an indented list of names, kinds and descriptions."""

    def __init__(self, definitions: Mapping[str, Any]) -> None:
        self._definitions = definitions

    def lines(self, properties: Mapping[str, Any], required: Sequence[Any], depth: int = 0) -> Iterator[str]:
        for name, schema in properties.items():
            yield from self._property(name, self._resolved(schema), name in required, depth)

    def _property(self, name: str, schema: Mapping[str, Any], is_required: bool, depth: int) -> Iterator[str]:
        indent = "  " * depth
        kind = schema.get("type", "any")
        described = schema.get("description")
        if kind == "array":
            items = self._resolved(schema.get("items"))
            yield f"{indent}{name}: [{_kind(items)}]{_mark(is_required)}"
            inner, within = items, depth + 2
        elif kind == "object":
            yield f"{indent}{name}:{_mark(is_required)}"
            inner, within = schema, depth + 1
        else:
            yield f"{indent}{name}: {_kind(schema)}{_mark(is_required)}"
            inner, within = {}, depth
        if described:
            yield f"{indent}  # {' '.join(str(described).split())}"
        nested = inner.get("properties")
        if isinstance(nested, Mapping) and nested and within < MAX_DEPTH // 4:
            if kind == "array":
                yield f"{indent}  # each item:"
            yield from self.lines(nested, inner.get("required") or (), within)

    def _resolved(self, schema: Any) -> Mapping[str, Any]:
        """Return a schema, its reference into the definitions followed once."""
        if not isinstance(schema, Mapping):
            return {}
        target = schema.get("$ref")
        if isinstance(target, str) and "$defs/" in target:
            found = self._definitions.get(target.rpartition("/")[2])
            if isinstance(found, Mapping):
                return {**found, **{key: value for key, value in schema.items() if key != "$ref"}}
        return schema


def _kind(schema: Mapping[str, Any]) -> str:
    kind = schema.get("type", "any")
    kinds = " or ".join(map(str, kind)) if isinstance(kind, list) else str(kind)
    choices = schema.get("enum")
    return f"{kinds} (one of: {', '.join(map(str, choices))})" if isinstance(choices, list) and choices else kinds


def _mark(is_required: bool) -> str:
    return " (required)" if is_required else ""
