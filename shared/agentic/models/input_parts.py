"""The input of a job or a message as a list of parts, and its defects; `api/intake/parts.py` stores them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from planq.shared.agentic.models.names import OFFLINE
from planq.shared.platform.values.defects import Defect, body_refused, defects_of_fields
from planq.shared.platform.values.media import is_media_type
from planq.shared.platform.values.parts import MAX_PARTS

_PARAGRAPH = "\n\n"
_SOURCES = ("url", "artifact_id", "data")

MAX_INPUT_PARTS = 64
"""Maximum number of parts of an input, texts included."""


class InputPart(BaseModel):
    """A part of an input: a text, or an image, a file or audio from one of `url`, `artifact_id` and `data`."""

    model_config = ConfigDict(extra="forbid", strict=True)

    type: Literal["text", "image", "file", "audio"] = Field(description="The kind of part.")
    text: str | None = Field(None, description="The text of a part of type `text`; texts are joined.")
    url: str | None = Field(
        None, max_length=2_000, description="A public http or https address; a worker fetches it."
    )
    artifact_id: str | None = Field(None, max_length=255, description="An artifact of bytes of the tenant.")
    data: str | None = Field(None, description="The bytes in base64.")
    media_type: str | None = Field(
        None, max_length=200, description="For example `image/png`; optional if the bytes show it."
    )
    filename: str | None = Field(
        None, min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f/\\\\]+$", description="Its name for the model."
    )


PARTS_SCHEMA = {"type": "array", "minItems": 1, "maxItems": MAX_INPUT_PARTS, "items": InputPart.model_json_schema()}
"""The JSON Schema of a list of parts."""

_PARTS = TypeAdapter(list[InputPart])


class ReadInput(NamedTuple):
    """The `text` of an input, None where it has none, and its other `parts`, each with its place in the body."""

    text: str | None
    parts: Sequence[tuple[str, InputPart]] = ()


def read_input(given: str | list[Any] | None, field: str = "input") -> ReadInput:
    """Join the texts of an input by blank lines; raises `InvalidRequest` with all defects of `field`."""
    if not isinstance(given, list):
        return ReadInput(given)
    if not given or len(given) > MAX_INPUT_PARTS:
        raise body_refused([Defect(field, "", f"expected 1 to {MAX_INPUT_PARTS} parts, found {len(given)}")])
    try:
        parts = _PARTS.validate_python(given)
    except ValidationError as error:
        raise body_refused(defects_of_fields(error, field)) from error
    placed = [(f"{field}.{number}", part) for number, part in enumerate(parts)]
    defects = [defect for place, part in placed for defect in _defects(place, part)]
    others = [(place, part) for place, part in placed if part.type != "text"]
    if len(others) > MAX_PARTS:
        message = f"expected at most {MAX_PARTS} images, files and audio parts, found {len(others)}"
        defects.append(Defect(field, "", message))
    if defects:
        raise body_refused(defects)
    texts = [part.text for part in parts if part.type == "text" and part.text]
    return ReadInput(_PARAGRAPH.join(texts) if texts or not others else None, others)


def check_reads_parts(model: str, types: Iterable[str], field: str = "input") -> None:
    """Raise `InvalidRequest` if the model is `offline` and the input has other parts than text."""
    if model == OFFLINE and (found := " and ".join(sorted(set(types)))):
        message = f"the model {OFFLINE!r} reads text only, found {found}; name another model, or send text"
        raise body_refused([Defect(field, "", message)])


def _defects(place: str, part: InputPart) -> list[Defect]:
    given = [name for name in _SOURCES if getattr(part, name) is not None]
    if part.type == "text":
        others = [*given, *(name for name in ("media_type", "filename") if getattr(part, name) is not None)]
        if part.text is None:
            return [Defect(f"{place}.text", "", "expected a text, found none")]
        return [Defect(f"{place}.{name}", "", "a part of the type text has a text alone") for name in others]
    found = []
    if part.text is not None:
        found.append(Defect(f"{place}.text", "", "only a part of the type text has a text"))
    if len(given) != 1:
        listed = " and ".join(given) or "none of them"
        found.append(Defect(place, "", f"expected one of url, artifact_id and data, found {listed}"))
    if part.media_type is not None and not is_media_type(part.media_type):
        found.append(Defect(f"{place}.media_type", "", "expected a media type such as image/png"))
    return found
