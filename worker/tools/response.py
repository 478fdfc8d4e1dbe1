"""What a tool returns in addition to its output: artifacts for people, texts for models.

    class Report(BaseModel):
        title: str
        text: str

    @tool(effect="idempotent")
    async def write(topic: str) -> Artifact[Report]:
        return Artifact(f"reports/{topic}", Report(title=topic, text="…"))

Later steps can refer to `$0.output.artifact_id`, `$0.output.artifact.title` and `$0.output._metadata.user_id`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar

from planq.shared.agentic.results.artifacts import MAX_ID
from planq.shared.agentic.tools.definition import MAX_PRICE_USD
from planq.shared.platform.values.media import UNKNOWN_MEDIA_TYPE, is_media_type

A = TypeVar("A")


@dataclass(frozen=True)
class Artifact(Generic[A]):
    """An artifact that a tool returns: an id that the tool chooses, and any body that a tool may return.

    Artifacts with the same `id` (1 to 255 characters) are versions of one artifact; readers get the newest by
    default. As a return annotation, `Artifact[Report]` defines the tool's output schema. planq adds the provenance:
    the output is `{"artifact_id", "artifact", "_metadata"}`. `skill_id` is the skill that it was made for, by
    default that of the agent, and `skill_name` its name for people; `executed_at` is aware, by default now.

    A body of bytes, or of text with a `media_type` (`text/csv`), is stored unchanged and served with that type. Its
    annotation is `Artifact[bytes]`, and the output has its `{"media_type", "bytes"}`.
    """

    id: str
    body: A
    skill_id: str | None = None
    executed_at: datetime | None = None
    media_type: str | None = None
    skill_name: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.id, str) or not 0 < len(self.id) <= MAX_ID:
            raise ValueError(f"an artifact's id is a text of 1 to {MAX_ID} characters; found {self.id!r:.300}")
        if self.media_type is None:
            return
        if not isinstance(self.body, (bytes, bytearray, memoryview, str)):
            raise ValueError(f"only bytes and texts have a media_type; found {type(self.body).__name__}")
        if not is_media_type(self.media_type):
            raise ValueError(f"a media_type is written like 'image/png'; found {self.media_type!r:.300}")

    def as_file(self) -> tuple[bytes, str] | None:
        """Return the bytes to store and their media type; None if the body is stored as JSON."""
        if isinstance(self.body, str):
            if self.media_type is None:
                return None
            is_open = "charset=" not in self.media_type and self.media_type.startswith("text/")
            kind = f"{self.media_type}; charset=utf-8" if is_open else self.media_type
            return self.body.encode("utf-8", "replace"), kind
        if not isinstance(self.body, (bytes, bytearray, memoryview)):
            return None
        return bytes(self.body), self.media_type or UNKNOWN_MEDIA_TYPE


@dataclass(frozen=True)
class ToolResponse(Generic[A]):
    """The result of a tool for each of its three readers.

    Later steps refer to `structured`, which is checked against the output schema: as a return annotation,
    `ToolResponse[Price]` defines that of `Price`. Models also read `content`, a text. People get the `artifacts`,
    each stored under its own id. Without `structured` the content is the output, as `{"text": …}`. Budgets count
    `cost_usd`, the cost of the call in US dollars from 0 to 1000.
    """

    content: str | None = None
    structured: A | None = None
    artifacts: Sequence[Artifact[Any]] = ()
    cost_usd: float | None = None

    def __post_init__(self) -> None:
        if self.content is not None and not isinstance(self.content, str):
            raise TypeError(f"content is a text for models; found {type(self.content).__name__}")
        if isinstance(self.artifacts, Artifact) or any(not isinstance(one, Artifact) for one in self.artifacts):
            raise TypeError(f"artifacts is a list of Artifact; found {self.artifacts!r:.300}")
        cost = self.cost_usd
        is_number = isinstance(cost, (int, float)) and not isinstance(cost, bool)
        if cost is not None and not (is_number and 0 <= cost <= MAX_PRICE_USD):
            raise ValueError(f"cost_usd is US dollars from 0 to {MAX_PRICE_USD:g}; found {cost!r:.300}")
        ids = [one.id for one in self.artifacts]
        if len({*ids}) < len(ids):
            raise ValueError(f"each artifact of a response has an id of its own; found {ids}")
