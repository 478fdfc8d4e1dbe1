"""An object that satisfies a schema, built by fixed rules from the question and the findings.

Values come from fields of the same name in input data or results; numbers and sentences from the text in order; of
listed choices the first that the text mentions. What the rules cannot build, the check of the answer reports.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from planq.shared.agentic.models.exchange import Ask, Findings
from planq.shared.agentic.schema.schemas import violations
from planq.shared.platform.errors import capped, storable
from planq.shared.platform.values.encoding import encode
from planq.worker.models.schemas import resolved

SIGNATURE = "— composed by planq's offline rules, not by a language model"

_MAX_TEXT_CHARS = 400
_MAX_TITLE_CHARS = 80
_MAX_ITEMS = 3
_MAX_NESTING = 6

_NUMBER = re.compile(r"(?<![\w.])-?\d{1,15}(?:\.\d{1,15})?(?![\w])(?!\.\d)")
_SENTENCE = re.compile(r"[^.!?\n]+[.!?]?")
_TITLES = frozenset({"title", "name", "topic", "subject", "headline", "label"})


def structured_text(schema: Mapping[str, Any], ask: Ask, findings: Findings | None = None) -> str:
    """Return the JSON text of an object for `schema`; the same question gives the same object."""
    made = _Maker(schema, _Sources.of(ask, findings)).value(schema, "", 0)
    try:
        return encode(made if isinstance(made, dict) else {}).decode()
    except (ValueError, RecursionError):  # a lone surrogate in the input data
        return "{}"


@dataclass(slots=True)
class _Sources:
    text: str
    fields: Sequence[Mapping[str, Any]]
    numbers: list[float] = field(default_factory=list)
    sentences: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, ask: Ask, findings: Findings | None) -> _Sources:
        found = [result.output for result in findings.results if result.succeeded] if findings else []
        fields = [value for value in (ask.data, *found) if isinstance(value, Mapping)]
        text = "\n".join([ask.input, *(piece for value in (ask.data, *found) for piece in _texts(value))])
        text = storable(text)
        numbers = [float(match[0]) for match in _NUMBER.finditer(text[:10_000])]
        sentences = [" ".join(match[0].split()) for match in _SENTENCE.finditer(text[:10_000])]
        return cls(text, fields, numbers, [one for one in sentences if re.search(r"\w", one)])

    def named(self, name: str) -> Iterator[Any]:
        for fields in self.fields:
            if name in fields:
                yield fields[name]

    def sentence(self) -> str:
        if not self.sentences:
            return "nothing was said"
        return self.sentences.pop(0) if len(self.sentences) > 1 else self.sentences[0]


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)


class _Maker:
    def __init__(self, root: Mapping[str, Any], sources: _Sources) -> None:
        self._root = root
        self._sources = sources

    def value(self, schema: Any, name: str, depth: int) -> Any:
        schema = self._resolved(schema)
        for candidate in self._given(schema, name):
            if self._fits(schema, candidate):
                return candidate
        for keyword in ("anyOf", "oneOf"):
            for one in schema.get(keyword) or ():
                made = self.value(one, name, depth + 1) if depth < _MAX_NESTING else None
                if self._fits(schema, made):
                    return made
        return self._made(schema, name, depth)

    def _given(self, schema: Mapping[str, Any], name: str) -> Iterator[Any]:
        if "const" in schema:
            yield schema["const"]
        yield from self._sources.named(name)
        choices = schema.get("enum") or []
        said = self._sources.text.lower()
        yield from (one for one in choices if isinstance(one, str) and one.lower() in said)
        yield from choices
        if "default" in schema:
            yield schema["default"]
        yield from schema.get("examples") or ()

    def _fits(self, schema: Mapping[str, Any], value: Any) -> bool:
        shared = {key: self._root[key] for key in ("$defs", "definitions") if key in self._root}
        return not violations({"properties": {"value": schema}, **shared}, {"value": value})

    def _resolved(self, schema: Any) -> Mapping[str, Any]:
        for _ in range(_MAX_NESTING):
            if not isinstance(schema, Mapping):
                return {}
            target = schema.get("$ref")
            if not isinstance(target, str):
                return schema
            schema = resolved(self._root, target)
        return {}

    def _made(self, schema: Mapping[str, Any], name: str, depth: int) -> Any:
        match _kind(schema):
            case "object":
                return self._object(schema, depth)
            case "array":
                return self._array(schema, name, depth)
            case "integer":
                return int(self._number(schema, whole=True))
            case "number":
                number = self._number(schema, whole=False)
                return int(number) if number.is_integer() else number
            case "boolean":
                return False
            case "null":
                return None
        return self._text(schema, name)

    def _object(self, schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
        properties = schema.get("properties") or {}
        required = schema.get("required") or ()
        wanted = [key for key in properties if key in required or depth < _MAX_NESTING // 2]
        if depth >= _MAX_NESTING:
            return {}
        return {key: self.value(properties[key], key, depth + 1) for key in wanted}

    def _array(self, schema: Mapping[str, Any], name: str, depth: int) -> list[Any]:
        least, most = int(schema.get("minItems", 0)), int(schema.get("maxItems", _MAX_ITEMS))
        if depth >= _MAX_NESTING:
            return []
        count = max(least, min(most, _MAX_ITEMS, max(1, len(self._sources.sentences))))
        singular = name.removesuffix("s")
        made = [self.value(schema.get("items"), singular, depth + 1) for _ in range(min(count, 100))]
        if schema.get("uniqueItems"):
            made = [one for index, one in enumerate(made) if one not in made[:index]]
        return made

    def _number(self, schema: Mapping[str, Any], *, whole: bool) -> float:
        step = float(schema.get("multipleOf", 1 if whole else 0))
        fitting = (one for one in self._sources.numbers if self._fits(schema, int(one) if one.is_integer() else one))
        found = next(fitting, None)
        if found is not None:
            self._sources.numbers.remove(found)
            return found
        least = float(schema.get("minimum", schema.get("exclusiveMinimum", 0)))
        most = float(schema.get("maximum", schema.get("exclusiveMaximum", max(least, 0.0))))
        if least == schema.get("exclusiveMinimum"):
            least += step or min(1.0, (most - least) / 2 or 1.0)
        number = min(max(least, 0.0), most) if "minimum" not in schema else least
        return -(-number // step) * step if step else number

    def _text(self, schema: Mapping[str, Any], name: str) -> str:
        limit = _MAX_TITLE_CHARS if name.lower() in _TITLES else _MAX_TEXT_CHARS
        text = self._sources.sentence()[:limit]
        if "pattern" in schema:
            words = (word.strip(".,;:!?()\"'") for word in self._sources.text[:10_000].split())
            text = next((word for word in words if self._fits(schema, word)), text)
        least, most = int(schema.get("minLength", 0)), schema.get("maxLength")
        if len(text) < least:
            text = (text + " " + "·" * min(least, 10_000))[:least]
        return capped(text if most is None else text[: int(most)], 10_000)


def _kind(schema: Mapping[str, Any]) -> str:
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = next((one for one in kind if one != "null"), "null")
    if isinstance(kind, str):
        return kind
    return "object" if "properties" in schema else "array" if "items" in schema else "string"
