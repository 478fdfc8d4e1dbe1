"""The record of a model call, from which a job's usage is summed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import Any
from uuid import UUID

from planq.shared.platform.errors import ErrorRecord


class Purpose(StrEnum):
    """Which stage a model call serves."""

    PLAN = "plan"
    RESPOND = "respond"


@dataclass(frozen=True, slots=True)
class MadeArtifact:
    """A file that a model has made, as the job stores it; `hash` is the SHA-256 of its bytes, which are a payload."""

    id: str
    media_type: str
    hash: bytes
    metadata: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ModelCall:
    """One logical call to a model, whatever number of HTTP attempts it took.

    `cost_usd` is None when the price of the model is not known. `cache_read_tokens` and `cache_write_tokens` are the
    parts of `input_tokens` that the provider read from its prompt cache or stored in it. `exchange` is
    `{"request": …, "reply": …}`, or None where the settings say that prompts and replies are not kept; of the request
    of a further turn it has what is new. `error` is None exactly when the call succeeded. The caller of a model gives
    the call an `id`, by which it is recorded once, however often it is passed on; one without is recorded each time.
    `artifacts` are stored by the transition that uses the reply, and by no other that records the call.
    """

    purpose: Purpose
    model: str
    latency_ms: int
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: Decimal | None = None
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    attempts: int = 1
    error: ErrorRecord | None = None
    exchange: Mapping[str, Any] | None = None
    id: UUID | None = None
    artifacts: Sequence[MadeArtifact] = ()
