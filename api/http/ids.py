"""Ids in paths and bodies: what is no UUID names nothing."""

from __future__ import annotations

from uuid import UUID

from planq.shared.platform.errors import NotFound, capped


def uuid_of(what: str, text: str, whose: str = "their") -> UUID:
    """Return the id in a path; text that is no UUID names none of `what`: `NotFound`."""
    try:
        return UUID(text)
    except ValueError:
        raise NotFound(f"there is no {what} {capped(text, 80)!r}; {whose} ids are UUIDs") from None


def job_id_of(text: str) -> UUID:
    return uuid_of("job", text, "job")


def conversation_id_of(text: str) -> UUID:
    """Return the id of a conversation that a caller names, as `uuid_of` does."""
    return uuid_of("conversation", text)
