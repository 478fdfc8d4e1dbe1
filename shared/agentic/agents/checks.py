"""Check documents of agents and skills before they are saved, as written; report all defects at once."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from planq.shared.agentic.models.names import OFFLINE, check_model_name
from planq.shared.agentic.rounds.block import read_block
from planq.shared.agentic.schema.patterns import needs_backtracking, patterns_of
from planq.shared.agentic.schema.schemas import check_schema, schema_defects
from planq.shared.agentic.source import MAX_CHARS, DocumentPath, DocumentSource, Finding
from planq.shared.agentic.tools.names import MAX_AGENT_NAME
from planq.shared.kernel.states import Strategy
from planq.shared.platform.errors import InvalidRequest, Misconfigured
from planq.shared.platform.values.defects import Defect
from planq.shared.platform.values.describe import excerpt

AGENT_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9_.\-]{{0,{MAX_AGENT_NAME - 1}}}")
"""Agents' names are part of addresses, file names and plans."""

_ONE_ROUND = (None, *(strategy for strategy in Strategy if not strategy.has_rounds))

_Found = Iterator[Finding]


def savable_defects(document: Mapping[str, Any], marked: DocumentSource) -> list[Defect]:
    """Return the defects of the name, the model, the output mode, the schemas and the loop of `document`."""
    written, document = document, flat_row(document)
    nested = written.get("json_schema") if document is not written else None
    found = [*_name(document), *_model(document), *_mode(document), *_answer_schema(document), *_actions(document)]
    found += _loop(document)
    return [
        marked.defect(("json_schema", *path) if path and _is_only_in(path[0], nested, written) else path, message)
        for path, message in found
    ]


def flat_row(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a table row (`content`, `json_schema`) as a flat document; any other document as it is."""
    nested, content = document.get("json_schema"), document.get("content")
    has_content = isinstance(content, str) and bool(content.strip())
    if not isinstance(nested, Mapping) and not (has_content and not document.get("description")):
        return document
    of_row = {
        name: value
        for name, value in document.items()
        if value is not None and name not in ("content", "json_schema")
    }
    flat = {**nested, **of_row} if isinstance(nested, Mapping) else of_row
    if has_content:
        short = {"short_description": of_row["description"]} if of_row.get("description") else {}
        flat = {**short, **flat, "description": content}
    return flat


def _is_only_in(name: str | int, nested: Any, written: Mapping[str, Any]) -> bool:
    return isinstance(nested, Mapping) and name in nested and written.get(str(name)) is None


def _name(document: Mapping[str, Any]) -> _Found:
    name = document.get("name")
    if name is None or name == "":
        yield (), "name is missing: expected the name under which the agent is saved"
    elif isinstance(name, str) and not AGENT_NAME.fullmatch(name):
        yield ("name",), _bad_name(name)


def _bad_name(name: str) -> str:
    allowed = f"expected a letter or digit, then at most {MAX_AGENT_NAME - 1} letters, digits, '_', '-' or '.'"
    return f"{allowed}; found {excerpt(name)}"


def _model(document: Mapping[str, Any]) -> _Found:
    model = document.get("model")
    if not isinstance(model, str):
        return
    try:
        check_model_name(model if ":" in model or model == OFFLINE else f"openai:{model}", allow_cassette=False)
    except InvalidRequest as error:
        yield ("model",), error.message


def _mode(document: Mapping[str, Any]) -> _Found:
    if document.get("structured_output") is True and not document.get("properties"):
        yield (
            ("structured_output",),
            "structured output needs properties: they are the schema that the answer must satisfy",
        )


def _loop(document: Mapping[str, Any]) -> _Found:
    nested = document.get("json_schema_extra")
    place: DocumentPath = ("json_schema_extra",) if isinstance(nested, Mapping) and "loop" in nested else ()
    loop = nested["loop"] if place and isinstance(nested, Mapping) else document.get("loop")
    if not isinstance(loop, Mapping):
        return  # of another type, the document itself says
    block, defects = read_block(loop)
    for path, message in defects:
        yield (*place, "loop", *path), message
    strategy = document.get("strategy") or (nested.get("strategy") if isinstance(nested, Mapping) else None)
    if block is not None and strategy in _ONE_ROUND and (fields := block.of_loops_alone()):
        needed = f"{', '.join(fields)}: only a job with rounds has these; add strategy: loop, or strategy: react"
        yield (*place, "loop"), needed


def _answer_schema(document: Mapping[str, Any]) -> _Found:
    properties = document.get("properties")
    if not isinstance(properties, Mapping):
        return
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    for key in ("$schema", "$defs", "definitions", "additionalProperties"):
        if key in document:
            schema[key] = document[key]
    yield from _schema(schema, ())
    required = document.get("required")
    if isinstance(required, list):
        for index, name in enumerate(required):
            if isinstance(name, str) and name not in properties:
                yield ("required", index), f"{excerpt(name)} is required, but is no property"


def _actions(document: Mapping[str, Any]) -> _Found:
    actions = document.get("actions")
    if isinstance(actions, list):
        seen: set[str] = set()
        for index, action in enumerate(actions):
            name = action.get("id") if isinstance(action, Mapping) else None
            if not isinstance(name, str) or not name:
                yield ("actions", index), f"expected an action with an id, found {excerpt(action)}"
            elif name in seen:
                yield ("actions", index, "id"), f"another action has the id {excerpt(name)} already"
            else:
                seen.add(name)
            yield from _action(action, ("actions", index))
    elif isinstance(actions, Mapping):
        for name, action in actions.items():
            yield from _action(action, ("actions", name))


def _action(action: Any, path: DocumentPath) -> _Found:
    if not isinstance(action, Mapping):
        return
    for key in ("input_schema", "input"):
        if isinstance(action.get(key), Mapping):
            yield from _schema(action[key], (*path, key))


def _schema(schema: Mapping[str, Any], path: DocumentPath) -> _Found:
    try:
        broken = schema_defects(schema)
    except RecursionError:
        yield path, "the schema is nested too deeply"
        return
    for place, message in broken:
        yield (*path, *place), f"not a valid JSON Schema: {message}"
    if not broken:
        slow = [(place, pattern) for place, pattern in patterns_of(schema) if needs_backtracking(pattern)]
        try:
            # A reference may turn a value into a schema; only this check looks at its patterns.
            check_schema(schema, "the schema", is_trusted=bool(slow))
        except Misconfigured as error:
            yield path, error.message
            return
        for place, pattern in slow:
            yield (
                (*path, *place),
                (
                    f"the pattern {excerpt(pattern)} needs look-around or back-references, which may never end, "
                    "or repeats too much; write it without"
                ),
            )


@dataclass(frozen=True, slots=True)
class Skill:
    """A skill that can be stored."""

    name: str
    text: str


def parse_skill(name: str, source: str | bytes) -> Skill:
    """Return a skill; raises `InvalidRequest`, whose `errors` are every defect as `{path, line, message}`."""
    found = [] if AGENT_NAME.fullmatch(name) else [Defect("/name", "", _bad_name(name))]
    text = ""
    try:
        text = source if isinstance(source, str) else source.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        assert isinstance(source, bytes)
        found.append(Defect("", "", "the text is not UTF-8", source[: error.start].count(b"\n") + 1))
    else:
        found += _text_defects(text)
    if found:
        listed = "; ".join(defect.render() for defect in found)
        raise InvalidRequest(f"the skill is not valid: {listed}", errors=[defect.of_document() for defect in found])
    return Skill(name, text)


def _text_defects(text: str) -> list[Defect]:
    if not text.strip():
        return [Defect("", "", "expected instructions, found an empty text")]
    if len(text) > MAX_CHARS:
        return [Defect("", "", f"the text has {len(text)} characters; at most {MAX_CHARS} are taken")]
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        return [Defect("", "", "the text holds a NUL character, which cannot be stored", line)]
    return []


NAMED_AGENT = rf"{AGENT_NAME.pattern}(@[1-9][0-9]{{0,8}})?"
"""The pattern of an agent's name, or of `name@version`."""

_VERSION = re.compile(r"[1-9][0-9]{0,8}")


@dataclass(frozen=True, slots=True)
class NamedAgent:
    """Without a `version`: the newest one in use, or the one that the conversation keeps."""

    name: str
    version: int | None = None

    def __str__(self) -> str:
        return self.name if self.version is None else f"{self.name}@{self.version}"


def read_named_agent(text: str) -> NamedAgent:
    """Split a name from its version; any other text is a name."""
    name, at, version = text.rpartition("@")
    return NamedAgent(name, int(version)) if at and _VERSION.fullmatch(version) else NamedAgent(text)
