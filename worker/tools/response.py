"""What a tool returns for those beside the next steps: artifacts for people, texts for models.

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
    """An artifact that a tool returns: an id of the tool's choice, and a body, which is whatever a tool may return.

    Each one under the same `id` (1 to 255 characters) becomes a version of that artifact, the newest by default.
    As a return annotation, `Artifact[Report]` gives the tool's output schema. planq fills in where it comes from: the
    output is `{"artifact_id", "artifact", "_metadata"}`. `skill_id` is the skill on whose behalf it was made, that of
    the agent by default, and `skill_name` what people call it; `executed_at` is aware, by default now.

    A body of bytes, or of text with a `media_type` (`text/csv`), is kept as it is and given out under that type. Its
    annotation is `Artifact[bytes]`, and the output says `{"media_type", "bytes"}` of it.
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
        """Return the bytes that are kept as they are, and their media type; None where the body is kept as JSON."""
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
    """What a tool returns to each of its three readers.

    Later steps refer to `structured`, which is checked against the output schema: as a return annotation,
    `ToolResponse[Price]` gives that of `Price`. Models are shown `content`, a text, beside it. People get the
    `artifacts`, each of which is stored under an id of its own. Without `structured` the content is the output, as
    `{"text": …}`. Budgets count `cost_usd`: what the call has cost, in US dollars from 0 to 1000.
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
