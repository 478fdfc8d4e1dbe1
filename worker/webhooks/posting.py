"""One attempt at a delivery: a signed POST within the guard (`worker/egress`). Only the body of a refusal is read."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID

from httpx2 import HTTPError, InvalidURL, StreamError, TimeoutException, UnsupportedProtocol

from planq.shared.platform.errors import ErrorRecord, ExecutionFailed, PlanqError, TimedOut, Transient, capped
from planq.shared.platform.redact import redacted
from planq.shared.subjects.webhooks.rules import (
    Delivery,
    DeliveryOutcome,
    after_failure,
    after_response,
    handed_back,
    signed_headers,
)
from planq.worker.egress import AnswerBounds, Egress, retry_after, words_of

SigningKeys = Callable[[str, UUID | None], Awaitable[Sequence[str]]]
"""`(tenant, endpoint) -> secrets` that sign for an endpoint, None for callbacks; raises `Misconfigured`."""

_USER_AGENT = "planq-webhooks/1"
_MOST_ANSWER_BYTES = 64 * 1024


class Poster:
    """Posts deliveries, and waits `timeout` for a status; `allowed` hosts may be private; `draw` spreads pauses."""

    def __init__(
        self,
        keys: SigningKeys,
        timeout: timedelta,
        allowed: frozenset[str],
        draw: Callable[[], float],
        *,
        egress: Egress | None = None,
    ) -> None:
        self._keys = keys
        self._timeout = timeout
        self._allowed = allowed
        self._draw = draw
        self._egress = egress or Egress()

    async def send(self, delivery: Delivery) -> DeliveryOutcome:
        """Make one attempt and return its outcome. Raises `DatabaseUnavailable`, before anything is sent."""
        keys = await self._signing_keys(delivery)
        if isinstance(keys, ErrorRecord):
            return handed_back(keys)
        try:
            async with asyncio.timeout(self._timeout.total_seconds()):
                status, wait, said = await self._post(delivery, keys)
        except (PlanqError, HTTPError, InvalidURL, StreamError, TimeoutError, UnicodeError) as error:
            return after_failure(self._described(error), delivery.tries, None, self._draw())
        waits = delivery.attempt - delivery.tries
        return after_response(status, delivery.tries, wait, self._draw(), said, age=delivery.age, waits=waits)

    async def _signing_keys(self, delivery: Delivery) -> Sequence[str] | ErrorRecord:
        try:
            return await self._keys(delivery.tenant_id, delivery.endpoint_id)
        except PlanqError as error:
            if error.code != "misconfigured":
                raise
            return ErrorRecord(error.code, error.message, retryable=True)

    async def _post(self, delivery: Delivery, keys: Sequence[str]) -> tuple[int, timedelta | None, str]:
        headers = {
            **signed_headers(str(delivery.id), datetime.now(UTC), delivery.body, keys),
            "Content-Type": "application/json",
            "User-Agent": _USER_AGENT,
        }
        assert delivery.target is not None  # a message goes over its channel
        bounds = AnswerBounds(_MOST_ANSWER_BYTES, self._timeout.total_seconds())
        async with (
            self._egress.guarded("the webhook", bounds, self._allowed) as client,
            client.stream("POST", delivery.target, content=delivery.body.encode(), headers=headers) as response,
        ):
            said = "" if response.is_success else await words_of(response)
            return response.status_code, retry_after(response), said

    def _described(self, error: Exception) -> ErrorRecord:
        if isinstance(error, ExecutionFailed):
            return ErrorRecord.of(error)
        if isinstance(error, (TimeoutError, TimeoutException)):
            seconds = self._timeout.total_seconds()
            return ErrorRecord(TimedOut.code, f"the receiver did not answer within {seconds:g} s", retryable=True)
        reason = f"{type(error).__name__}: {redacted(str(error))}".removesuffix(": ")
        if isinstance(error, (InvalidURL, UnsupportedProtocol, UnicodeError)):
            return ErrorRecord("invalid_arguments", capped(f"the address cannot be used ({reason})", 500))
        return ErrorRecord(
            Transient.code, capped(f"the receiver could not be reached ({reason})", 500), retryable=True
        )
