"""What the operations of `agent_schema` and `chained_tool` are in planq, where no engine is needed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from planq.shared.agentic.agents.document import AgentDocument, read_agent
from tests.model.history import RowKind, replayed
from tests.model.shapes import turn_rows

Answer = Any


def _fields(document: AgentDocument) -> dict[str, Any]:
    """Return a document as the cases show one: its fields, unknown ones too, and the names of its tools."""
    fields = document.model_dump(mode="json", exclude={"system_prompt_extension"})
    fields["system_prompt"] = document.system_prompt_extension
    for name in ("tools", "limits", "actions"):
        fields[name] = _without_nulls(fields[name])
    return fields | {"tool_names": [tool.name for tool in document.tools]}


def _without_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def parse(given: Mapping[str, Any]) -> Answer:
    return _fields(read_agent(given["doc"]))


def roundtrip(given: Mapping[str, Any]) -> Answer:
    stored = read_agent(given["doc"]).to_json()
    source = yaml.safe_dump(stored) if given["format"] == "yaml" else stored
    return _fields(read_agent(source))


def system_prompt(given: Mapping[str, Any]) -> Answer:
    return {"text": read_agent(given["doc"]).system_prompt()}


def output_mode(given: Mapping[str, Any]) -> Answer:
    document = read_agent(given["doc"])
    schema = document.answer_schema()
    if schema is None:
        return {"mode": document.output_mode()}
    return {
        "mode": document.output_mode(),
        "fields": list(schema["properties"]),
        "required": schema.get("required", []),
    }


def options(given: Mapping[str, Any]) -> Answer:
    chosen = read_agent(given["doc"]).options(given.get("overrides"), **given["defaults"])
    return {"model": chosen.model, "temperature": chosen.temperature, "max_tokens": chosen.max_tokens}


def row(given: Mapping[str, Any]) -> Answer:
    document = read_agent(given["doc"])
    content = document.description
    return {"name": document.name, "kind": document.kind, "description": document.summary, "content": content}


def history(given: Mapping[str, Any]) -> Answer:
    rows = [(RowKind(one["message_type"]), one["content"]) for one in given["rows"]]
    return {"messages": [{"role": one.role, "content": one.content} for one in replayed(rows)]}


def turn(given: Mapping[str, Any]) -> Answer:
    return {"rows": [str(kind) for kind in turn_rows(given["tool_calls"])]}


AGENTS = {
    "agent_schema": {
        "parse": parse,
        "roundtrip": roundtrip,
        "system_prompt": system_prompt,
        "output_mode": output_mode,
        "options": options,
        "row": row,
    },
    "chained_tool": {"history": history, "turn_rows": turn},
}
