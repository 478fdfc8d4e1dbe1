"""What models' servers refuse, as all processes have learned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from planq.shared.agentic.models.adaptations import Adaptation, known_adaptations
from planq.shared.platform.database import Database
from planq.shared.platform.errors import capped
from planq.shared.platform.refreshing_cache import RefreshingCache

_FRESH_SECONDS = 60.0

_DAYS = 7.0
"""Days to use an adaptation; then a call tries the full request again."""

_MAX_ROWS = 1_000
"""Maximum stored adaptations; the oldest are deleted first."""

_MAX_REFUSAL_CHARS = 500


@dataclass(frozen=True, slots=True)
class StoredAdaptation:
    """One row, for people."""

    base_url: str
    model: str
    adaptation: str
    refusal: str
    learned_at: datetime
    expires_at: datetime


class AdaptationStore:
    """Adaptations of all processes; lives on one event loop. Raises `Unavailable` without a database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._known = RefreshingCache[tuple[str, str], frozenset[Adaptation]](self._look, _FRESH_SECONDS)

    async def of(self, base_url: str, model: str) -> frozenset[Adaptation]:
        """Return how requests for a model at a base URL are changed."""
        return await self._known.of((base_url, model))

    async def learn(self, base_url: str, model: str, adaptation: Adaptation, refusal: str) -> None:
        """Store that a server has accepted a changed request after this `refusal`."""
        await self._database.fetch_one(
            "learn_adaptation",
            base_url=base_url,
            model=model,
            adaptation=adaptation.value,
            refusal=capped(refusal, _MAX_REFUSAL_CHARS),
            days=_DAYS,
            most=_MAX_ROWS,
        )

    async def all(self) -> Sequence[StoredAdaptation]:
        """Return all current adaptations."""
        return [StoredAdaptation(**row) for row in await self._database.fetch_all("list_adaptations")]

    async def forget(self, model: str | None) -> int:
        """Delete the adaptations of a model, or all; other processes notice within a minute. Return the count."""
        return await self._database.execute("forget_adaptations", model=model)

    async def _look(self, key: tuple[str, str]) -> frozenset[Adaptation]:
        rows = await self._database.fetch_all("adaptations_of", base_url=key[0], model=key[1])
        return known_adaptations([str(row["adaptation"]) for row in rows])
