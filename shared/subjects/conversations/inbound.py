"""The message that every channel hands over, and its checks before it is stored."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, GetJsonSchemaHandler, WithJsonSchema
from pydantic_core import CoreSchema, core_schema

from planq.shared.agentic.models.input_parts import PARTS_SCHEMA, ReadInput, read_input
from planq.shared.agentic.turns.channel_kinds import DEFAULT_CHANNELS
from planq.shared.agentic.turns.wording import sanitized
from planq.shared.platform.errors import ForeignTenant, TenantRequired, capped
from planq.shared.platform.values.defects import Defect, body_refused
from planq.shared.platform.values.describe import excerpt
from planq.shared.subjects.tenants.config import TenantConfig

MAX_NAME_CHARS = 128
"""Maximum length of the channel's name of a person, a thread or a message."""

# Letters of any script, but no control characters: the name of a user goes to tools in a header.
_LETTERS = r"^[^\x00-\x1f\x7f]+$"
_Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARS, pattern=_LETTERS)]


_SAYS_SOMETHING = r"[^\s\x00-\x1f\x7f-\x9f\ufeff]"
"""A character that is neither white space nor removed, in Python and ECMAScript; for descriptions."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Sender(_Part):
    """Who sends a message."""

    type: Literal["user", "bot"] = "user"
    external_id: _Name = Field(description="The person's id on the channel; tools get it as the user.")
    display_name: str | None = Field(None, max_length=200)


class Recipient(_Part):
    """Who gets a message; channels with one bot name none."""

    type: Literal["user", "bot"] = "bot"
    external_id: str = Field("", max_length=MAX_NAME_CHARS)
    display_name: str | None = Field(None, max_length=200)


class Content(_Part):
    type: Literal["text"] = "text"
    text: str = Field(
        description="At most 10 000 characters are kept; a longer text is cut, with a mark.",
        json_schema_extra={"pattern": _SAYS_SOMETHING},
    )


class _ContentOrParts:
    """Lets content be a list, read by `read_input`. A union would put its branches into the places of defects."""

    @classmethod
    def __get_pydantic_core_schema__(cls, _: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_wrap_validator_function(_unless_list, handler(Content))

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [handler(core), PARTS_SCHEMA]}


def _unless_list(value: Any, checked: Callable[[Any], Any]) -> Any:
    return value if isinstance(value, list) else checked(value)


class CanonicalMessage(_Part):
    """One message of one person, from any channel."""

    model_config = ConfigDict(json_schema_extra={"required": ["tenant_id", "channel", "from", "content"]})

    # A message without one is refused by its own error: the model takes it, its description does not.
    tenant_id: Annotated[str | None, WithJsonSchema({"type": "string", "minLength": 1})] = Field(
        None, max_length=200, description="The tenant of the key."
    )
    channel: Annotated[str, Field(min_length=1, max_length=63)] = Field(
        description=f"One of the tenant's channels; by default `{'`, `'.join(DEFAULT_CHANNELS)}`."
    )
    direction: Literal["inbound"] = "inbound"
    from_: Sender = Field(alias="from")
    to: Recipient | None = None
    thread: _Name | None = Field(
        None, description="The channel's name of the conversation; without it, a new conversation begins."
    )
    source_message_id: _Name | None = Field(
        None,
        description="The channel's name of the message; if it arrives twice in a conversation, it is answered once.",
    )
    content: Annotated[Content | list[Any], _ContentOrParts] = Field(
        description="A text, or a list of parts: texts, images, files and audio, as the `input` of a job has them."
    )
    agent: _Name | None = Field(
        None,
        description="Its agent, `name` or `name@version`; by default that of its conversation, channel or "
        "tenant. `metadata.agent` means the same.",
    )
    metadata: dict[str, Any] = Field(default_factory=dict, description="Stored with the message; at most 16 KiB.")
    id: _Name | None = Field(None, description="Used if `source_message_id` is missing.")
    conversation_id: _Name | None = Field(
        None,
        description="planq's id of the conversation, from an earlier answer; a `thread` must be this conversation's.",
    )
    timestamp: str | None = Field(
        None,
        max_length=64,
        description="When the channel got it, in ISO 8601; kept as it is.",
        json_schema_extra={"format": "date-time"},
    )

    def named_thread(self) -> str | None:
        """Return the channel's name of the conversation, if any.

        Adapters of other systems send it as `metadata.external_thread_id`, which may be a number.
        """
        external = self.metadata.get("external_thread_id")
        return self.thread or (None if external is None else str(external))

    def said(self) -> ReadInput:
        """Return text, images, files and audio; raises `InvalidRequest` for wrong parts."""
        if isinstance(self.content, Content):
            return ReadInput(self.content.text)
        return read_input(self.content, "content")

    def source_id(self) -> str | None:
        """Return the channel's name of the message, if any."""
        return self.source_message_id or self.id


def checked_text(message: CanonicalMessage, tenant_id: str, config: TenantConfig) -> str:
    """Return a message's text as stored and sent to a model, empty if it has other parts only.

    Raises `TenantRequired`, `ForeignTenant`, and `InvalidRequest` for an unknown channel, blank text, or a wrong
    part, thread or time.
    """
    if not message.tenant_id:
        raise TenantRequired("tenant_id: expected the tenant of the API key, found none; a message names its tenant")
    if message.tenant_id.lower() != tenant_id:  # UUIDs are written in either case
        raise ForeignTenant("Tenant ID mismatch: the API key is of another tenant (possible spoofing attempt)")
    said = message.said()
    text = sanitized(said.text or "")
    defects = []
    if message.channel not in config.channels:
        defects.append(("channel", unknown_channel(message.channel, config.channels)))
    if not text.strip() and not said.parts:
        found = "only white space or control characters" if said.text else "an empty one"
        field = "content.text" if isinstance(message.content, Content) else "content"
        defects.append((field, f"expected a text that says something, found {found}"))
    defects += _thread_defects(message.metadata.get("external_thread_id")) + _time_defects(message.timestamp)
    if defects:
        raise body_refused([Defect(field, "", message) for field, message in defects])
    return text


def unknown_channel(channel: str, known: Sequence[str]) -> str:
    return f"unknown channel {capped(channel, 63)!r}; known channels are {', '.join(known)}"


def _thread_defects(external: Any) -> list[tuple[str, str]]:
    """Return what is wrong with the metadata's thread; ignoring it would begin a new conversation."""
    is_number = isinstance(external, int | float) and not isinstance(external, bool)
    is_name = isinstance(external, str) and len(external) <= MAX_NAME_CHARS and re.fullmatch(_LETTERS, external)
    if external is None or is_number or is_name:
        return []
    message = f"expected a number, or a text of 1 to {MAX_NAME_CHARS} characters, found {excerpt(external)}"
    return [("metadata.external_thread_id", message)]


def _time_defects(timestamp: str | None) -> list[tuple[str, str]]:
    try:
        if timestamp is not None:
            datetime.fromisoformat(timestamp)
    except ValueError:
        message = f"expected a time in ISO 8601, such as 2026-11-30T09:15:00Z, found {excerpt(timestamp)}"
        return [("timestamp", message)]
    return []
