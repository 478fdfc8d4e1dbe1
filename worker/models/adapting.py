"""The adaptations to models' servers that this process knows: stored ones, and those it has learned itself."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping

from planq.shared.agentic.models.adaptations import Adaptation
from planq.shared.platform.errors import Unavailable
from planq.shared.subjects.adaptations.store import AdaptationStore

_log = logging.getLogger("planq.llm")

_MAX_MODELS = 1_000
"""Maximum number of models whose adaptations are kept in the process."""

_OWN_SECONDS = 180.0
"""Seconds that a process keeps its own findings; by then every process has read them from the database."""


class KnownAdaptations:
    """The stored adaptations, and those learned here since; a call never fails because the database is away."""

    def __init__(self, stored: AdaptationStore | None, clock: Callable[[], float]) -> None:
        self._stored = stored
        self._clock = clock
        self._own: OrderedDict[tuple[str, str], dict[Adaptation, float]] = OrderedDict()

    async def of(self, base_url: str, model: str) -> frozenset[Adaptation]:
        """Return how requests for a model at a base URL are changed."""
        own = self._own.get((base_url, model), {})
        since = self._clock() - _OWN_SECONDS
        known = frozenset(one for one, learned_at in own.items() if self._stored is None or learned_at > since)
        if self._stored is None:
            return known
        try:
            return known | await self._stored.of(base_url, model)
        except Unavailable as error:
            _log.warning("adaptations_not_read", extra={"model": model, "cause": str(error)})
            return frozenset(own)

    def learned(self, model: str) -> frozenset[Adaptation]:
        """Return what this process itself has learned about a model, at any base URL."""
        return frozenset(one for (_, own), found in self._own.items() if own == model for one in found)

    async def learn(self, base_url: str, model: str, refusals: Mapping[Adaptation, str]) -> None:
        """Remember that a server accepted a request with these adaptations; each has the refusal that led to it."""
        for adaptation, refusal in refusals.items():
            self._own.setdefault((base_url, model), {})[adaptation] = self._clock()
            self._own.move_to_end((base_url, model))
            if len(self._own) > _MAX_MODELS:
                self._own.popitem(last=False)
            _log.warning("model_adapted", extra={"model": model, "adaptation": adaptation.value, "refusal": refusal})
            try:
                if self._stored is not None:
                    await self._stored.learn(base_url, model, adaptation, refusal)
            except Unavailable as error:
                _log.warning("adaptation_not_stored", extra={"model": model, "cause": str(error)})
