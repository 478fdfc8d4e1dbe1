"""What a tool returns that makes an artifact, for authors of tools.

    class Report(BaseModel):
        title: str
        text: str

    @tool(effect="idempotent")
    async def write(topic: str) -> Artifact[Report]:
        return Artifact(f"reports/{topic}", Report(title=topic, text="…"))

Later steps can refer to `$0.output.artifact_id`, `$0.output.artifact.title` and `$0.output._metadata.user_id`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Generic, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from planq.shared.domain.results.artifacts import MAX_ID, METADATA_SCHEMA, provenance
from planq.shared.ports import ToolContext

A = TypeVar("A")


@dataclass(frozen=True)
class Artifact(Generic[A]):
    """An artifact that a tool returns: an id of the tool's choice, and a body, which is whatever a tool may return.

    Each one under the same `id` (1 to 255 characters) becomes a version of that artifact, the newest by default.
    As a return annotation, `Artifact[Report]` gives the tool's output schema. planq fills in where it comes from: the
    output is `{"artifact_id", "artifact", "_metadata"}`. `skill_id` is the skill on whose behalf it was made, that of
    the agent by default; `executed_at` is aware, by default now.
    """

    id: str
    body: A
    skill_id: str | None = None
    executed_at: datetime | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.id, str) or not 0 < len(self.id) <= MAX_ID:
            raise ValueError(f"an artifact's id is a text of 1 to {MAX_ID} characters; found {self.id!r:.300}")


class ToolResponse(BaseModel, Generic[A]):
    """An artifact with its id and where it comes from; as a return annotation it gives the tool's output schema.

    Each output under one `artifact_id` becomes a version of that artifact, the newest by default.
    """

    model_config = ConfigDict(frozen=True, populate_by_name=True)

    artifact_id: Annotated[
        str, Field(min_length=1, max_length=MAX_ID, description="Unique identifier of the artifact")
    ]
    artifact: A
    metadata: Annotated[dict[str, Any], Field(alias="_metadata"), WithJsonSchema(METADATA_SCHEMA)]

    @classmethod
    def new(
        cls,
        artifact_id: str,
        artifact: A,
        context: ToolContext,
        *,
        skill_id: str | None = None,
        executed_at: datetime | None = None,
    ) -> Self:
        """Wrap an artifact that the call of `context` has made.

        `skill_id` is the skill on whose behalf, that of the agent by default; `executed_at` is aware, by default now.
        Raises `pydantic.ValidationError` for an `artifact_id` that is empty or longer than 255 characters.
        """
        metadata = provenance(context, executed_at or datetime.now(UTC), skill_id=skill_id)
        return cls(artifact_id=artifact_id, artifact=artifact, metadata=metadata)

    def to_json(self) -> dict[str, Any]:
        """Return the wrapper as JSON: `{"artifact_id", "artifact", "_metadata"}`."""
        return self.model_dump(mode="json", by_alias=True)
