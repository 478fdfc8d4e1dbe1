"""Artifacts of tools: their wrapper, ids, types, parts and fingerprints (docs/decisions.md, D22).

{"artifact_id": "…", "artifact": {…}, "_metadata": {"context_id": "…", "tool_name": "…", …}}
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from planq.shared.agentic.schema.schemas import rebase
from planq.shared.agentic.tools.contract import ToolContext
from planq.shared.platform.errors import storable

ENVELOPE_TYPES = frozenset({"cli"})
"""Type tags that name a container, not its content, in any case (art-074, art-075)."""

SHAPES = frozenset({"table", "chart", "form"})
"""Types that planq detects by shape; tags for them are written in lower case."""

MAX_STORED_BYTES = 100 * 1024**3
"""Default maximum of a tenant's large outputs and artifacts."""

MAX_ID = 255
"""Longer ids may not fit an index entry of PostgreSQL; such an output is stored, but not as an artifact."""

MAX_CONTENT = 32_000
"""Maximum characters of a tool's text for models, in addition to its output."""

METADATA_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "context_id": {"type": "string"},
        "request_id": {"type": "string"},
        "trace_id": {"type": "string"},
        "user_id": {"type": "string"},
        "tool_name": {"type": "string"},
        "skill_id": {"type": "string", "description": "The skill that it was made for, if any"},
        "skill_name": {"type": "string", "description": "What people call that skill"},
        "executed_at": {"type": "string", "format": "date-time"},
    },
}


@dataclass(frozen=True, slots=True)
class ArtifactIdentity:
    """The stored fields of an artifact; its body is the step's output."""

    id: str
    skill_id: str | None
    type: str | None
    metadata: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Wrapper:
    """The parts of an artifact wrapper."""

    artifact: Any
    metadata: Any


BYTES_SCHEMA: dict[str, Any] = {
    "type": "object",
    "description": "The artifact is bytes of this media type.",
    "properties": {"media_type": {"type": "string"}, "bytes": {"type": "integer"}},
    "required": ["media_type", "bytes"],
}
"""Replaces the body of an artifact of bytes in an output."""


def tool_response_schema(artifact_schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the output schema of a tool with artifacts of `artifact_schema`."""
    return {
        "type": "object",
        "properties": {
            "artifact_id": {"type": "string", "description": "Unique identifier for the artifact"},
            "artifact": rebase(dict(artifact_schema), "/properties/artifact"),
            "_metadata": METADATA_SCHEMA,
        },
        "required": ["artifact_id", "artifact", "_metadata"],
    }


def build_tool_response(
    artifact_id: str, artifact: Mapping[str, object], made_by: ToolContext, executed_at: datetime
) -> dict[str, Any]:
    """Return the output for an artifact, valid under `tool_response_schema`; `executed_at` is an aware time."""
    metadata = provenance(made_by, executed_at)
    return {"artifact_id": artifact_id, "artifact": dict(artifact), "_metadata": metadata}


def provenance(
    made_by: ToolContext, executed_at: datetime, *, skill_id: str | None = None, skill_name: str | None = None
) -> dict[str, Any]:
    """Return the `_metadata` of an artifact, its time in UTC; `skill_id` wins over the call's."""
    metadata = {
        "context_id": made_by.context_id,
        "request_id": made_by.request_id,
        "trace_id": made_by.trace_id,
        "user_id": made_by.user_id,
        "tool_name": made_by.tool_name,
        "executed_at": executed_at.astimezone(UTC).isoformat().replace("+00:00", "Z"),
    }
    named = made_by.skill_id if skill_id is None else skill_id
    if named is None:
        return metadata
    called = {} if skill_name is None else {"skill_name": skill_name}
    return {**metadata, "skill_id": named, **called}


def detect_wrapper(content: Any) -> Wrapper | None:
    """Return the parts of an artifact wrapper; None unless all three fields exist."""
    if isinstance(content, Mapping) and all(key in content for key in ("artifact_id", "artifact", "_metadata")):
        return Wrapper(content["artifact"], content["_metadata"])
    return None


def identify(output: Any) -> ArtifactIdentity | None:
    """Return the stored fields of an output that is a wrapper with a usable id, else None."""
    wrapper = detect_wrapper(output)
    if wrapper is None:
        return None
    artifact_id = extract_artifact_id(output)
    if artifact_id is None or not is_artifact_id(artifact_id):
        return None
    skill_id = extract_skill_id(output)
    kind = infer_type(wrapper.artifact, None)
    metadata = wrapper.metadata if isinstance(wrapper.metadata, Mapping) else None
    return ArtifactIdentity(artifact_id, skill_id and storable(skill_id), kind and storable(kind), metadata)


def is_artifact_id(text: str) -> bool:
    """True for an id under which an artifact can be kept."""
    return 0 < len(text) <= MAX_ID and text == storable(text)


def extract_skill_id(content: Any) -> str | None:
    """Return the first skill id at the top level, in `_metadata`, or in a wrapper's `artifact`; also ""."""
    wrapper = detect_wrapper(content)
    places = [content, _field(content, "_metadata"), wrapper.artifact if wrapper is not None else None]
    return _first_text(_field(place, "skill_id") for place in places)


def extract_artifact_id(content: Any) -> str | None:
    """Return the top-level `artifact_id`, None if it is no text (art-021)."""
    return _first_text([_field(content, "artifact_id")])


def infer_type(artifact: Any, schema: Mapping[str, Any] | None) -> str | None:
    """Return the type: the tag of the schema or data, else the shape of the schema or data, else None."""
    tagged = _first_tag(_schema_tags(schema)) or _first_tag(_data_tags(artifact))
    return tagged or _shape_of_schema(schema) or _shape_of_data(artifact)


def fingerprint(tool_name: str, arguments: Any) -> str:
    """Return a hash of a call's name and JSON arguments; None and `{}` differ (art-093), unlike in the guard."""
    text = json.dumps([tool_name, arguments], sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _field(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else None


def _first_text(values: Any) -> str | None:
    return next((value for value in values if isinstance(value, str)), None)


def _first_tag(values: Iterator[Any]) -> str | None:
    for tag in values:
        if isinstance(tag, str) and tag and tag.lower() not in ENVELOPE_TYPES:
            return tag.lower() if tag.lower() in SHAPES else tag
    return None


def _schema_tags(schema: Any) -> Iterator[Any]:
    yield _field(schema, "x-artifact-type")
    yield _field(_field(_field(schema, "properties"), "artifact"), "x-artifact-type")


def _data_tags(artifact: Any) -> Iterator[Any]:
    inner = _field(artifact, "artifact")
    for place in (artifact, inner, _field(inner, "card"), _field(artifact, "card")):
        yield _field(place, "x-artifact-type")
        yield _field(place, "artifact_type")


def _shape_of_schema(schema: Any) -> str | None:
    if _field(schema, "type") == "array" and _field(_field(schema, "items"), "type") == "object":
        return "table"
    properties = _field(schema, "properties")
    if not isinstance(properties, Mapping):
        return None
    if "labels" in properties and "datasets" in properties:
        return "chart"
    return "form" if "fields" in properties else None


def _shape_of_data(artifact: Any) -> str | None:
    is_rows = isinstance(artifact, list) and artifact and all(isinstance(row, Mapping) for row in artifact)
    return "table" if is_rows else None
