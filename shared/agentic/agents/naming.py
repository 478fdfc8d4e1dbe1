"""How requests and configurations name an agent: by its name, and `name@version` where it is to be that version."""

from __future__ import annotations

import re
from dataclasses import dataclass

from planq.shared.agentic.agents.checks import AGENT_NAME

NAMED_AGENT = rf"{AGENT_NAME.pattern}(@[1-9][0-9]{{0,8}})?"
"""What names an agent, for descriptions."""

_VERSION = re.compile(r"[1-9][0-9]{0,8}")


@dataclass(frozen=True, slots=True)
class NamedAgent:
    """An agent as it was named; without a `version` it is the newest in use, or the one that a conversation keeps."""

    name: str
    version: int | None = None

    def __str__(self) -> str:
        return self.name if self.version is None else f"{self.name}@{self.version}"


def read_named_agent(text: str) -> NamedAgent:
    """Return the agent that a text names; what names no version is a name as it stands, and nobody has it then."""
    name, at, version = text.rpartition("@")
    return NamedAgent(name, int(version)) if at and _VERSION.fullmatch(version) else NamedAgent(text)
