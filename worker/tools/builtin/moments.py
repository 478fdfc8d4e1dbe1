"""`save_moments`, `get_moments`, `update_user_metadata`, `action`: what tools store in addition to their outputs.

All of it is bounded in size, and holds nothing that PostgreSQL cannot. Moments are saved under ids that follow from
the step's idempotency key, so that a repeated step saves nothing twice.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

from planq.shared.agentic.tools.contract import ToolContext
from planq.shared.kernel.states import Effect
from planq.shared.platform.errors import Cancelled, InvalidArguments, InvalidRequest, capped, storable
from planq.shared.platform.values.describe import is_deeper_than
from planq.shared.platform.values.merge_patch import merge_patch
from planq.shared.platform.values.schedule import read_moment
from planq.shared.subjects.moments.contract import Moment, MomentQuery, MomentRecord
from planq.worker.tools.declare import tool
from planq.worker.tools.services import ToolServices

_MOST_SAVED = 100
_MOST_FOUND = 100
_MAX_MOMENT_BYTES = 32 * 1024
_NAME_CHARS = 300
_MOST_TAGS = 50

_MOMENT_IDS = uuid.UUID("7d2c3c0e-54a5-5b7e-9a1b-6f0b8f0b52c4")
"""Namespace of moment ids (RFC 9562 §5.5)."""

_DREAM = "dream-"
_JOINS = re.compile(r"[-_]+")

_Tag = Annotated[str, Field(min_length=1, max_length=100)]
_TIME = "ISO 8601, such as 2026-11-21T09:30:00+01:00; UTC where no offset is given."


class MomentInput(BaseModel):
    """A moment as an agent gives it; fields beside these are kept with it."""

    model_config = ConfigDict(extra="allow")

    name: str = Field(description="A short name, or a slug such as dream-api-gateway.", min_length=1, max_length=300)
    summary: str = Field(default="", description="What happened, in a few sentences.", max_length=20_000)
    tags: list[_Tag] = Field(
        default_factory=list,
        description="Topics.",
        max_length=_MOST_TAGS,
        validation_alias=AliasChoices("tags", "topic_tags"),
    )
    starts_at: str | None = Field(
        default=None, description=_TIME, validation_alias=AliasChoices("starts_at", "starts_timestamp")
    )
    ends_at: str | None = Field(
        default=None, description=_TIME, validation_alias=AliasChoices("ends_at", "ends_timestamp")
    )


_Moments = Annotated[list[MomentInput] | None, Field(max_length=_MOST_SAVED)]
_Texts = Annotated[list[Annotated[str, Field(max_length=1_000)]] | None, Field(max_length=_MOST_TAGS)]


class SavedMoments(TypedDict):
    """What was saved."""

    status: Literal["success"]
    moments_count: int
    saved_moment_ids: Annotated[list[str], Field(description="Their ids, in the order given.")]
    names: Annotated[list[str], Field(description="The names that they have now, in the order given.")]


class FoundMoment(TypedDict):
    """A moment that was found."""

    id: str
    name: str
    summary: str
    tags: list[str]
    starts_at: str
    ends_at: str | None
    details: Annotated[dict[str, Any], Field(description="What else was saved with it.")]
    score: Annotated[float, Field(description="Relevance; 0 where no words were asked for.")]


class FoundMoments(TypedDict):
    """The moments, best or newest first."""

    status: Literal["success"]
    results: list[FoundMoment]
    text: Annotated[str, Field(description="All of them as one text.")]
    count: int


@tool(effect=Effect.IDEMPOTENT, timeout_seconds=30)
async def save_moments(
    context: ToolContext,
    services: ToolServices,
    moments: Annotated[_Moments, Field(description="What to save, in order.")] = None,
    dream_moments: Annotated[_Moments, Field(description="Another name for `moments`; give one of the two.")] = None,
    search_questions: Annotated[_Texts, Field(description="What to look for later; kept with each moment.")] = None,
    cross_session_themes: Annotated[
        _Texts, Field(description="What goes through all; kept with each moment.")
    ] = None,
) -> SavedMoments:
    """Save moments (things that happened, insights) of the user, so that search and get_moments find them again."""
    given = moments if moments is not None else dream_moments
    if given is None or (moments is not None and dream_moments is not None):
        found = "both" if given is not None else "neither"
        raise InvalidArguments(f"save_moments: expected either moments or dream_moments, found {found}")
    shared = {"search_questions": search_questions, "cross_session_themes": cross_session_themes}
    beside = {name: texts for name, texts in shared.items() if texts}
    wanted = [_moment(one, position, context, beside) for position, one in enumerate(given)]
    if wanted:
        await services.memory.save_moments(context.tenant_id, context.user_id, wanted)
    return {
        "status": "success",
        "moments_count": len(wanted),
        "saved_moment_ids": [str(moment.id) for moment in wanted],
        "names": [moment.name for moment in wanted],
    }


@tool(effect=Effect.READ, timeout_seconds=30)
async def get_moments(
    context: ToolContext,
    services: ToolServices,
    query: Annotated[
        str | None, Field(description="Words to look for; the newest by default.", min_length=1, max_length=1_000)
    ] = None,
    tags: Annotated[list[_Tag] | None, Field(description="All of these.", max_length=_MOST_TAGS)] = None,
    since: Annotated[str | None, Field(description=f"Not before this time: {_TIME}")] = None,
    until: Annotated[str | None, Field(description=f"Before this time: {_TIME}")] = None,
    limit: Annotated[int, Field(description="The most moments to return.", ge=1, le=_MOST_FOUND)] = 20,
) -> FoundMoments:
    """Return the user's saved moments: by words, by tags, by time; the best matches or the newest first."""
    wanted = MomentQuery(
        query=query,
        tags=tuple(map(storable, tags or ())),
        since=_time(since, "since"),
        until=_time(until, "until"),
        limit=limit,
    )
    found = await services.memory.find_moments(context.tenant_id, context.user_id, wanted)
    results = [_found(moment) for moment in found]
    return {"status": "success", "results": results, "text": _readable(results), "count": len(results)}


def moment_title(name: str) -> str:
    """Return a name for people: without `dream-`, a slug as words, each word with a capital."""
    bare = storable(name).strip()
    if bare.lower().startswith(_DREAM):
        bare = bare[len(_DREAM) :]
    if not any(character.isspace() for character in bare):
        bare = _JOINS.sub(" ", bare)
    return " ".join(word[:1].upper() + word[1:] for word in bare.split()) or "Untitled"


def _moment(given: MomentInput, position: int, context: ToolContext, beside: Mapping[str, Any]) -> Moment:
    place = f"save_moments: moment {position}"
    body = {**beside, **(given.model_extra or {})}
    check_size(place, body, _MAX_MOMENT_BYTES)
    starts_at, ends_at = _time(given.starts_at, f"{place}: starts_at"), _time(given.ends_at, f"{place}: ends_at")
    if starts_at is not None and ends_at is not None and ends_at < starts_at:
        raise InvalidArguments(f"{place}: expected an end after its start, found {capped(str(given.ends_at), 80)!r}")
    return Moment(
        id=uuid.uuid5(_MOMENT_IDS, f"{context.idempotency_key}/{position}"),
        name=moment_title(given.name),
        summary=storable(given.summary),
        body=storable_json(body),
        starts_at=starts_at,
        ends_at=ends_at,
        tags=tuple(storable(tag) for tag in given.tags),
    )


def _time(text: str | None, place: str) -> datetime | None:
    if text is None:
        return None
    try:
        return read_moment(text, UTC, place)
    except InvalidRequest as error:
        raise InvalidArguments(error.message) from error


def _found(moment: MomentRecord) -> FoundMoment:
    return {
        "id": str(moment.id),
        "name": moment.name,
        "summary": moment.summary,
        "tags": list(moment.tags),
        "starts_at": moment.starts_at.astimezone(UTC).isoformat(),
        "ends_at": None if moment.ends_at is None else moment.ends_at.astimezone(UTC).isoformat(),
        "details": dict(moment.body),
        "score": moment.score,
    }


def _readable(found: Sequence[FoundMoment]) -> str:
    if not found:
        return "There are no such moments."
    return "\n\n".join(f"{one['name']} ({one['starts_at']})\n{one['summary']}".rstrip() for one in found)


_MAX_METADATA_BYTES = 32 * 1024
_MAX_LEVELS = 10


class UpdatedMetadata(TypedDict):
    """What is kept of the user now."""

    status: Literal["success"]
    user_id: str
    metadata: Annotated[dict[str, Any], Field(description="Everything that is kept now.")]


@tool(effect=Effect.IDEMPOTENT, timeout_seconds=30)
async def update_user_metadata(
    metadata: Annotated[
        dict[str, Any],
        Field(
            description="A JSON merge patch: given keys replace the kept ones, objects are merged key by key, null "
            "removes a key. An empty object changes nothing and shows what is kept."
        ),
    ],
    context: ToolContext,
    services: ToolServices,
) -> UpdatedMetadata:
    """Remember facts about the user (preferences, relations, interests), and return all that is kept (32 KiB)."""
    patch = storable_json(metadata)
    if is_deeper_than(patch, _MAX_LEVELS):
        raise InvalidArguments(f"update_user_metadata: expected at most {_MAX_LEVELS} levels, found more")

    def change(present: Mapping[str, Any]) -> Mapping[str, Any]:
        merged: dict[str, Any] = merge_patch(present, patch)
        check_size("update_user_metadata: all that would be kept", merged, _MAX_METADATA_BYTES)
        return merged

    kept = await services.memory.change_user(context.tenant_id, context.user_id, change)
    return {"status": "success", "user_id": context.user_id, "metadata": dict(kept)}


_EVENT = "action"
"""The kind of the event; its data is `{round, index, type, payload}`."""

_MAX_PAYLOAD_BYTES = 16 * 1024

_ACTION_SCHEMA = {
    "type": "object",
    "properties": {
        "_action_event": {"const": True, "description": "Always true: this is the result of an action."},
        "action_type": {"type": "string", "description": "The type that was given."},
        "status": {"const": "success"},
        "payload": {"type": "object", "description": "The payload, when one was given."},
    },
    "required": ["_action_event", "action_type", "status"],
}


@tool(effect=Effect.IDEMPOTENT, timeout_seconds=30, output_schema=_ACTION_SCHEMA)
async def action(
    type: Annotated[
        str,
        Field(
            description="What kind of action: `observation`, `elicit` (asks the user), or a name of your own.",
            min_length=1,
            max_length=100,
        ),
    ],
    context: ToolContext,
    services: ToolServices,
    payload: Annotated[
        dict[str, Any] | None,
        Field(description="What belongs to it, at most 16 KiB of JSON; such as question, options."),
    ] = None,
) -> dict[str, Any]:
    """Emit a structured event, which the followers of the job receive; the same step emits it once."""
    check_size("action: payload", payload, _MAX_PAYLOAD_BYTES)
    data = {"type": storable_json(type), "payload": storable_json(payload)}
    if not await services.memory.emit(context, _EVENT, data):
        raise Cancelled("action: the attempt that emits the event is over, so nothing was emitted")
    result: dict[str, Any] = {"_action_event": True, "action_type": type, "status": "success"}
    if payload is not None:
        result["payload"] = payload
    return result


def check_size(place: str, value: Any, limit: int) -> None:
    """Raise `InvalidArguments` naming `place` when the JSON of `value` is longer than `limit` bytes."""
    size = len(json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass"))
    if size > limit:
        raise InvalidArguments(f"{place}: expected at most {limit} bytes of JSON, found {size}")


def storable_json(value: Any) -> Any:
    """Return a JSON value with what no database holds (NUL, lone surrogates) replaced in all its texts."""
    match value:
        case str():
            return storable(value)
        case dict():
            return {storable(str(key)): storable_json(item) for key, item in value.items()}
        case list():
            return [storable_json(item) for item in value]
        case _:
            return value
