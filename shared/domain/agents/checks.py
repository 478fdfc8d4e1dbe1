"""What an agent's document must satisfy to be saved, beyond the types of its fields; every defect is found at once.

These checks read the document as it was written, so that they say what they find although other parts of it are
broken too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from shared.domain.agents.marked import Defect, Marked, Path
from shared.domain.errors import InvalidRequest, Misconfigured
from shared.domain.model_names import OFFLINE, check_model_name
from shared.domain.names import MAX_AGENT_NAME
from shared.domain.patterns import needs_backtracking, patterns_of
from shared.domain.schemas import check_schema, excerpt, schema_defects

AGENT_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9_.\-]{{0,{MAX_AGENT_NAME - 1}}}")
"""Names of agents stand in addresses, in the names of files and in plans."""

Found = Iterator[tuple[Path, str]]


def savable_defects(document: Mapping[str, Any], marked: Marked) -> list[Defect]:
    """Return what keeps `document` from being saved: its name, its model, its schemas, its output mode."""
    found = [*_name(document), *_model(document), *_mode(document), *_answer_schema(document), *_actions(document)]
    return [marked.defect(path, message) for path, message in found]


def _name(document: Mapping[str, Any]) -> Found:
    name = document.get("name")
    if name is None or name == "":
        yield (), "name is missing: expected the name under which the agent is saved"
    elif isinstance(name, str) and not AGENT_NAME.fullmatch(name):
        expected = f"expected a letter or digit, then at most {MAX_AGENT_NAME - 1} letters, digits, '_', '-' or '.'"
        yield ("name",), f"{expected}; found {excerpt(name)}"


def _model(document: Mapping[str, Any]) -> Found:
    model = document.get("model")
    if not isinstance(model, str):
        return
    try:
        check_model_name(model if ":" in model or model == OFFLINE else f"openai:{model}", allow_cassette=False)
    except InvalidRequest as error:
        yield ("model",), error.message


def _mode(document: Mapping[str, Any]) -> Found:
    if document.get("structured_output") is True and not document.get("properties"):
        yield (
            ("structured_output",),
            "structured output needs properties: they are the schema that the answer must satisfy",
        )


def _answer_schema(document: Mapping[str, Any]) -> Found:
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


def _actions(document: Mapping[str, Any]) -> Found:
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


def _action(action: Any, path: Path) -> Found:
    if not isinstance(action, Mapping):
        return
    for key in ("input_schema", "input"):
        if isinstance(action.get(key), Mapping):
            yield from _schema(action[key], (*path, key))


def _schema(schema: Mapping[str, Any], path: Path) -> Found:
    """Say what is wrong with a schema that stands at `path`; one of the document itself stands at the top."""
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
            # A reference may make a schema of what stands there as a value: only this looks at the patterns in it.
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
