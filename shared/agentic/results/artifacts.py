"""Artifacts: the wrapper that tools return them in, their ids, types, parts and fingerprints.

The shape of a wrapper, and where its skill is looked for (docs/decisions.md, D22):

    {"artifact_id": "…", "artifact": {…}, "_metadata": {"context_id": "…", "tool_name": "…", …}}
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from planq.shared.agentic.schema.schemas import rebase
from planq.shared.platform.errors import storable

ENVELOPE_TYPES = frozenset({"cli"})
"""Type tags that name a container and never what it contains (cases art-074, art-075), in whatever case."""

SHAPES = frozenset({"table", "chart", "form"})
"""The types that planq itself tells by their shape; a tag that means one is spelt so, in whatever case it came."""

MAX_STORED_BYTES = 100 * 1024**3
"""Of large outputs and artifacts of a tenant whose configuration does not say it."""

MAX_ID = 255
"""Longer ids do not fit an index entry of PostgreSQL for certain; such an output is kept, but not as an artifact."""

MAX_CONTENT = 32_000
"""Characters that are kept of what a tool says to models beside its output."""

METADATA_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "context_id": {"type": "string"},
        "request_id": {"type": "string"},
        "trace_id": {"type": "string"},
        "user_id": {"type": "string"},
        "tool_name": {"type": "string"},
        "skill_id": {"type": "string", "description": "The skill on whose behalf it was made, where there is one"},
        "skill_name": {"type": "string", "description": "What people call that skill"},
        "executed_at": {"type": "string", "format": "date-time"},
    },
}


class Provenance(Protocol):
    """Who made an artifact; `ports.ToolContext` is one."""

    @property
    def context_id(self) -> str: ...
    @property
    def request_id(self) -> str: ...
    @property
    def trace_id(self) -> str: ...
    @property
    def user_id(self) -> str: ...
    @property
    def tool_name(self) -> str: ...
    @property
    def skill_id(self) -> str | None: ...


@dataclass(frozen=True, slots=True)
class ArtifactIdentity:
    """What is stored about an artifact beside its body, which is the step's output."""

    id: str
    skill_id: str | None
    type: str | None
    metadata: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Wrapper:
    """An output that is an artifact wrapper, taken apart."""

    artifact: Any
    metadata: Any


BYTES_SCHEMA: dict[str, Any] = {
    "type": "object",
    "description": "What is kept under the artifact_id: bytes, of this media type.",
    "properties": {"media_type": {"type": "string"}, "bytes": {"type": "integer"}},
    "required": ["media_type", "bytes"],
}
"""What an output says of an artifact of bytes in the place of its body."""


def tool_response_schema(artifact_schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the output schema of a tool whose artifacts have `artifact_schema`; references see into it."""
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
    artifact_id: str, artifact: Mapping[str, object], made_by: Provenance, executed_at: datetime
) -> dict[str, Any]:
    """Return the structured output for an artifact, valid under `tool_response_schema` of the artifact's schema.

    `executed_at` is an aware time; it is written in UTC (ISO 8601).
    """
    metadata = provenance(made_by, executed_at)
    return {"artifact_id": artifact_id, "artifact": dict(artifact), "_metadata": metadata}


def provenance(
    made_by: Provenance, executed_at: datetime, *, skill_id: str | None = None, skill_name: str | None = None
) -> dict[str, Any]:
    """Return the `_metadata` of what a call has made; `skill_id` wins over that of the call.

    `executed_at` is an aware time; it is written in UTC (ISO 8601). `skill_name` is what the skill is called.
    """
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
    """Return the parts of an artifact wrapper; None when one of its three fields is not there."""
    if isinstance(content, Mapping) and all(key in content for key in ("artifact_id", "artifact", "_metadata")):
        return Wrapper(content["artifact"], content["_metadata"])
    return None


def identify(output: Any) -> ArtifactIdentity | None:
    """Return what is stored about an output that is an artifact wrapper with a usable id, else None."""
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
    """Return the skill that made an artifact, None when nothing names one.

    Looked for at the top level, then in `_metadata`, then, in a wrapper, in `artifact`; the first that is a text
    counts, an empty one too.
    """
    wrapper = detect_wrapper(content)
    places = [content, _field(content, "_metadata"), wrapper.artifact if wrapper is not None else None]
    return _first_text(_field(place, "skill_id") for place in places)


def extract_artifact_id(content: Any) -> str | None:
    """Return the top-level `artifact_id`, None when it is no text; one inside `artifact` does not count (art-021)."""
    return _first_text([_field(content, "artifact_id")])


def infer_type(artifact: Any, schema: Mapping[str, Any] | None) -> str | None:
    """Say of which type an artifact is (`table`, `chart`, `form`, or whatever a tag says); None when nothing tells.

    An explicit tag wins: of the schema, then of the data; then the shape the schema describes, then that of the data.
    """
    tagged = _first_tag(_schema_tags(schema)) or _first_tag(_data_tags(artifact))
    return tagged or _shape_of_schema(schema) or _shape_of_data(artifact)


def fingerprint(tool_name: str, arguments: Any) -> str:
    """Return a hash of a call, equal exactly when name and JSON arguments are; key order does not count.

    No arguments (None) and empty ones (`{}`) differ (art-093), unlike in the duplicate guard.
    """
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
