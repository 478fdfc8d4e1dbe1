"""One attempt at a delivery: a signed POST, within the guard (`worker/egress.py`), whose answer is not read."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID

import httpx

from planq.shared.domain.errors import ErrorRecord, ExecutionFailed, PlanqError, TimedOut, Transient, capped
from planq.shared.domain.redact import redacted
from planq.shared.domain.webhooks.deliveries import DeliveryOutcome, after_failure, after_response
from planq.shared.domain.webhooks.signing import signed_headers
from planq.shared.ports.deliveries import Delivery
from planq.worker.egress import GuardedTransport, Resolver, resolve_with_system, retry_after

SigningKeys = Callable[[str, UUID | None], Awaitable[Sequence[str]]]
"""`(tenant, endpoint) -> secrets` that sign for an endpoint, or with None for callbacks; raises `Misconfigured`."""

_USER_AGENT = "planq-webhooks/1"


def now_in_utc() -> datetime:
    """Return the present moment, which the receiver compares with its own."""
    return datetime.now(UTC)


class Poster:
    """Posts deliveries.

    The receiver gets `timeout` to answer with a status; what it sends after its headers is left unread. Redirects are
    not followed. `allowed` hosts may lie in a private network; `draw` spreads the pauses.
    """

    def __init__(
        self,
        keys: SigningKeys,
        timeout: timedelta,
        allowed: frozenset[str],
        draw: Callable[[], float],
        *,
        resolve: Resolver = resolve_with_system,
        now: Callable[[], datetime] = now_in_utc,
    ) -> None:
        self._keys = keys
        self._timeout = timeout
        self._allowed = allowed
        self._draw = draw
        self._resolve = resolve
        self._now = now

    async def send(self, delivery: Delivery) -> DeliveryOutcome:
        """Make one attempt; returns what became of it. Raises `DatabaseUnavailable`, before anything was sent."""
        keys = await self._signing_keys(delivery)
        if isinstance(keys, ErrorRecord):
            return after_failure(keys, delivery.tries, None, self._draw())
        try:
            async with asyncio.timeout(self._timeout.total_seconds()):
                status, wait = await self._post(delivery, keys)
        except (PlanqError, httpx.HTTPError, httpx.InvalidURL, TimeoutError, UnicodeError) as error:
            return after_failure(self._described(error), delivery.tries, None, self._draw())
        return after_response(status, delivery.tries, wait, self._draw())

    async def _signing_keys(self, delivery: Delivery) -> Sequence[str] | ErrorRecord:
        try:
            return await self._keys(delivery.tenant_id, delivery.endpoint_id)
        except PlanqError as error:
            if error.code != "misconfigured":
                raise
            # An operator can put it right meanwhile.
            return ErrorRecord(error.code, error.message, retryable=True)

    async def _post(self, delivery: Delivery, keys: Sequence[str]) -> tuple[int, timedelta | None]:
        headers = {
            **signed_headers(str(delivery.id), self._now(), delivery.body, keys),
            "Content-Type": "application/json",
            "User-Agent": _USER_AGENT,
        }
        assert delivery.target is not None  # a message goes over its channel
        transport = GuardedTransport(self._resolve, self._allowed, "the webhook")
        seconds = self._timeout.total_seconds()
        async with (
            httpx.AsyncClient(
                transport=transport, follow_redirects=False, timeout=seconds, trust_env=False
            ) as client,
            client.stream("POST", delivery.target, content=delivery.body.encode(), headers=headers) as response,
        ):
            return response.status_code, retry_after(response)

    def _described(self, error: Exception) -> ErrorRecord:
        """Say why nothing was delivered: tried again unless the address itself is refused."""
        if isinstance(error, ExecutionFailed):
            return ErrorRecord.of(error)
        if isinstance(error, (TimeoutError, httpx.TimeoutException)):
            seconds = self._timeout.total_seconds()
            return ErrorRecord(TimedOut.code, f"the receiver did not answer within {seconds:g} s", retryable=True)
        reason = f"{type(error).__name__}: {redacted(str(error))}".removesuffix(": ")
        if isinstance(error, (httpx.InvalidURL, httpx.UnsupportedProtocol, UnicodeError)):
            return ErrorRecord("invalid_arguments", capped(f"the address cannot be used ({reason})", 500))
        return ErrorRecord(
            Transient.code, capped(f"the receiver could not be reached ({reason})", 500), retryable=True
        )
