"""API keys: what a key allows its holder."""

from __future__ import annotations

from enum import StrEnum


class KeyScope(StrEnum):
    """What a key allows: work of its tenant's own, its tenant's conversations, or the tenants themselves."""

    JOBS = "jobs"
    MESSAGES = "messages"
    ADMIN = "admin"
