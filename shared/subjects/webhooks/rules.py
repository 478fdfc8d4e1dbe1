"""Deliveries: states, retries, allowed addresses and events, and signatures.

Signatures follow Standard Webhooks, symmetric (https://www.standardwebhooks.com, Signature scheme).
"""

from __future__ import annotations

import base64
import ipaddress
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

from standardwebhooks import Webhook

from planq.shared.platform.addresses import why_refused
from planq.shared.platform.errors import ErrorRecord, InvalidRequest, capped


class DeliveryKind(StrEnum):
    """How a delivery is sent."""

    WEBHOOK = "webhook"  # of an event, to an endpoint or a callback
    MESSAGE = "message"  # of a conversation, to its channel


class DeliveryStatus(StrEnum):
    """State of a delivery; `uncertain`: it may have arrived, and the receiver cannot detect a repeat."""

    PENDING = "pending"
    SENDING = "sending"
    SENT = "sent"
    UNCERTAIN = "uncertain"
    FAILED = "failed"


UNFINISHED_DELIVERY = (DeliveryStatus.PENDING, DeliveryStatus.SENDING)

LADDER = (
    timedelta(seconds=5),
    timedelta(seconds=15),
    timedelta(minutes=1),
    timedelta(minutes=5),
    timedelta(minutes=30),
    timedelta(hours=2),
    timedelta(hours=5),
    timedelta(hours=10),
    timedelta(hours=14),
    timedelta(hours=20),
    timedelta(hours=24),
)
"""Pauses after failed attempts: those of Standard Webhooks, and two short ones for restarts."""

LONGEST_PAUSE = LADDER[-1]
"""Maximum honoured `Retry-After`."""

LONGEST_WAITED = timedelta(days=4)
"""How long after the event waits do not count as attempts."""

_LONGEST_WAIT = 4
"""Maximum rung of the ladder for waits."""

_SPREAD = 0.1
"""Maximum jitter of a pause."""


def delivery_pause(attempt: int, retry_after: timedelta | None, jitter: float) -> timedelta | None:
    """Return the pause after a failed attempt (from 1), at least `retry_after`; None: give up."""
    if attempt > len(LADDER):
        return None
    pause = LADDER[attempt - 1] * (1 + _SPREAD * jitter)
    return pause if retry_after is None else max(pause, min(retry_after, LONGEST_PAUSE))


def asks_to_wait(status: int | None, retry_after: timedelta | None) -> bool:
    """Return whether the receiver answers 429 or 503 with `Retry-After`."""
    return status in _ASK_TO_WAIT and retry_after is not None


@dataclass(frozen=True, slots=True)
class DeliveryOutcome:
    """The result of an attempt: sent, to be repeated `again` after a pause, or failed.

    `is_gone`: the receiver wants no more. `is_uncertain`: it may have arrived. `pause` holds up the whole channel,
    and `problem` concerns it. `external_id` is the receiver's id, `moved_to` its thread's new name. With `is_wait`
    the attempt does not count.
    """

    error: ErrorRecord | None = None
    again: timedelta | None = None
    response_status: int | None = None
    is_gone: bool = False
    is_uncertain: bool = False
    pause: timedelta | None = None
    problem: str | None = None
    external_id: str | None = None
    moved_to: str | None = None
    is_wait: bool = False

    @property
    def is_sent(self) -> bool:
        return self.error is None


_GONE = 410
_TOO_MANY = 429
_ASK_TO_WAIT = frozenset({_TOO_MANY, 503})


_NEW = timedelta(0)


def after_response(
    status: int,
    tries: int,
    retry_after: timedelta | None,
    jitter: float,
    said: str = "",
    *,
    age: timedelta = _NEW,
    waits: int = 0,
) -> DeliveryOutcome:
    """Return the result of an answer after `tries`, including this one; redirects fail unchecked."""
    if 200 <= status < 300:
        return DeliveryOutcome(response_status=status)
    if status == _GONE:
        message = "the receiver answered 410 Gone: it wants no more deliveries"
        return DeliveryOutcome(ErrorRecord("gone", message), response_status=status, is_gone=True)
    code = "rate_limited" if status == _TOO_MANY else "receiver_failed" if status >= 500 else "receiver_refused"
    message = f"the receiver answered {status}; expected a status from 200 to 299"
    if 300 <= status < 400:
        message = f"{message}: redirects are not followed"
    elif said:
        message = f"{message}. It says: {said}"
    return after_failure(
        ErrorRecord(code, message, retryable=True), tries, retry_after, jitter, status, age=age, waits=waits
    )


HAND_BACK_PAUSE = timedelta(seconds=15)
"""Pause before another worker tries what this one cannot send."""


def handed_back(error: ErrorRecord) -> DeliveryOutcome:
    """Return the result of an attempt that this process cannot make; it does not count."""
    return DeliveryOutcome(error, HAND_BACK_PAUSE, is_wait=True)


def after_failure(
    error: ErrorRecord,
    tries: int,
    retry_after: timedelta | None,
    jitter: float,
    response_status: int | None = None,
    *,
    age: timedelta = _NEW,
    waits: int = 0,
) -> DeliveryOutcome:
    """Return the result of an error after `tries`; one that is not `retryable` is final.

    A wait that the receiver asks for is no attempt before `LONGEST_WAITED`; repeated `waits` grow to five minutes.
    """
    if asks_to_wait(response_status, retry_after) and age < LONGEST_WAITED:
        return DeliveryOutcome(
            error, delivery_pause(min(waits + 1, _LONGEST_WAIT), retry_after, jitter), response_status, is_wait=True
        )
    again = delivery_pause(tries, retry_after, jitter) if error.retryable else None
    return DeliveryOutcome(error, again, response_status)


@dataclass(frozen=True, slots=True)
class Delivery:
    """A delivery to send to `target` now.

    `attempt` is its fencing token, `tries` counts since the request. A callback has no endpoint. A message goes to a
    `channel` (`config` null: disabled); `parts` have arrived, more if `is_doubtful`; its body is empty if it was
    erased. `age` counts from its event.
    """

    id: UUID
    tenant_id: str
    endpoint_id: UUID | None
    target: str | None
    recipient: str
    event: str
    body: str
    attempt: int
    tries: int
    kind: str = DeliveryKind.WEBHOOK
    channel: str | None = None
    channel_kind: str | None = None
    config: Mapping[str, Any] | None = None
    parts: int = 0
    is_doubtful: bool = False
    age: timedelta = timedelta(0)


EVENTS = (
    "job.completed",
    "job.failed",
    "job.cancelled",
    "job.input_required",
    "batch.completed",
    "batch.failed",
    "batch.cancelled",
    "channel.problem",
)
"""Events for endpoints; `job.*`, `batch.*` and `channel.*` match all of a kind."""

MAX_TARGET_CHARS = 2_000

EVENT_NAMES = (*EVENTS, *dict.fromkeys(f"{event.partition('.')[0]}.*" for event in EVENTS))
"""Names that endpoints may use."""


def checked_url(
    url: str, field: str, allowed: Collection[str] = (), setting: str = "PLANQ_WEBHOOK_ALLOW_HOSTS"
) -> str:
    """Return an address for deliveries; raises `InvalidRequest` naming the `field`.

    Private networks and this machine are refused unless the host is in `allowed` (`host` or `host:port`, lower case),
    the setting `setting`. Names are resolved and checked at sending.
    """
    if len(url) > MAX_TARGET_CHARS:
        raise InvalidRequest(f"{field}: expected at most {MAX_TARGET_CHARS} characters, found {len(url)}")
    shown = repr(capped(url, 200))
    if not url.isprintable() or " " in url:
        raise InvalidRequest(f"{field}: expected an address without spaces or control characters, found {shown}")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise InvalidRequest(f"{field}: expected https://host/path, found {shown} ({error})") from None
    if parts.scheme not in ("http", "https") or not host:
        raise InvalidRequest(f"{field}: expected https://host/path or http://host/path, found {shown}")
    if "@" in parts.netloc:
        # It is stored and shown; a password in it would be, too.
        raise InvalidRequest(f"{field}: expected an address without a user name or password before @")
    if parts.fragment:
        raise InvalidRequest(f"{field}: expected an address without a fragment: nothing after # is ever sent")
    port = port or (443 if parts.scheme == "https" else 80)
    if not {host, f"{host}:{port}"} & set(allowed) and (reason := _why_local(host)):
        raise InvalidRequest(f"{field}: {capped(host, 100)!r} is {reason}; an operator can allow it by {setting}")
    return url


def checked_events(events: Sequence[str]) -> list[str]:
    """Return unique names of events; raises `InvalidRequest` for none or an unknown one."""
    unknown = [event for event in events if event not in EVENT_NAMES]
    if unknown or not events:
        found = ", ".join(repr(capped(event, 40)) for event in unknown[:10]) or "none"
        raise InvalidRequest(f"events: expected one or more of {', '.join(EVENT_NAMES)}, found {found}")
    return list(dict.fromkeys(events))


def _why_local(host: str) -> str | None:
    if host == "localhost" or host.endswith(".localhost"):
        return "a loopback address"
    try:
        return why_refused(ipaddress.ip_address(host))
    except ValueError:
        return None  # a name


SIGNING_ENTROPY_BYTES = 32
"""Random bytes of a secret; the standard wants 24 to 64."""

OVERLAP = timedelta(hours=24)
"""How long the previous secret also signs after a rotation."""

_PREFIX = "whsec_"


def signing_secret(entropy: bytes) -> str:
    """Return the secret of fresh random bytes (`SIGNING_ENTROPY_BYTES`)."""
    if len(entropy) != SIGNING_ENTROPY_BYTES:
        raise ValueError(f"expected {SIGNING_ENTROPY_BYTES} random bytes, found {len(entropy)}")
    return _PREFIX + base64.b64encode(entropy).decode()


def signed_headers(message_id: str, moment: datetime, body: str, secrets: Sequence[str]) -> Mapping[str, str]:
    """Return an attempt's headers at a UTC time, signed by each secret; `webhook-id` detects repeats."""
    if moment.utcoffset() != timedelta(0):
        # `sign` takes any time for one in UTC (standardwebhooks 1.1).
        raise ValueError(f"expected a time in UTC, found {moment.isoformat()}")
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(int(moment.timestamp())),
        "webhook-signature": " ".join(Webhook(secret).sign(message_id, moment, body) for secret in secrets),
    }
