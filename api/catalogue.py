"""The published tools, kept for a moment: a submission would else ask for all of them each time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from time import monotonic

from shared.domain.tool import ToolDefinition

FRESH_SECONDS = 2.0
"""As long as workers keep them too."""

Tools = Mapping[str, ToolDefinition]


class Catalogue:
    """What `ask` returns, the tools by name; lives on one event loop."""

    def __init__(self, ask: Callable[[], Awaitable[Tools]]) -> None:
        self._ask = ask
        self._kept: Tools | None = None
        self._fresh_until = 0.0

    async def tools(self) -> Tools:
        """Return the tools as they are, or were at most `FRESH_SECONDS` ago."""
        kept = self._kept
        if kept is None or monotonic() >= self._fresh_until:
            return await self.renewed()
        return kept

    async def renewed(self) -> Tools:
        """Return the tools as they are."""
        begun = monotonic()
        found = await self._ask()
        # Of two that ask at once the one that began later knows better.
        if begun + FRESH_SECONDS >= self._fresh_until:
            self._kept, self._fresh_until = found, begun + FRESH_SECONDS
        return found
