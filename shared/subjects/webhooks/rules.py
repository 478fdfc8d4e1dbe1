"""Deliveries: what leaves the house, where one stands, and when one that failed is tried again.

Also which addresses and events an endpoint may name, and how a delivery is signed: Standard Webhooks, symmetric
(https://www.standardwebhooks.com, Signature scheme).
"""

from __future__ import annotations

import base64
import ipaddress
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any
from urllib.parse import SplitResult, urlsplit
from uuid import UUID

from standardwebhooks import Webhook

from planq.shared.platform.addresses import why_refused
from planq.shared.platform.errors import ErrorRecord, InvalidRequest, capped


class DeliveryKind(StrEnum):
    """How a delivery leaves the house."""

    WEBHOOK = "webhook"  # of an event, to an endpoint or a callback
    MESSAGE = "message"  # of a conversation, to its channel


class DeliveryStatus(StrEnum):
    """Where a delivery stands.

    A doubtful one is `uncertain` where its receiver could not know a second one for a repeat; a webhook is sent again
    under its id instead.
    """

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
"""The pauses after the first attempts; after the last one the delivery has failed.

Those of Standard Webhooks (Retries), and two more at the beginning: most receivers that are away are only restarted.
"""

LONGEST_PAUSE = LADDER[-1]
"""The longest `Retry-After` that is honoured."""

LONGEST_WAITED = timedelta(days=4)
"""How long after its event a delivery's receiver may ask for waits that do not count as attempts."""

_LONGEST_WAIT = 4
"""The rung of the ladder that waits climb to."""

_SPREAD = 0.1
"""By how much a pause may be longer, so that what failed together does not come back together."""


def delivery_pause(attempt: int, retry_after: timedelta | None, jitter: float) -> timedelta | None:
    """Return how long after a failed attempt, counted from 1, the next one comes; None when there is none.

    What the receiver asked for (`retry_after`) is the least, within a day; `jitter` is drawn from [0, 1).
    """
    if attempt > len(LADDER):
        return None
    pause = LADDER[attempt - 1] * (1 + _SPREAD * jitter)
    return pause if retry_after is None else max(pause, min(retry_after, LONGEST_PAUSE))


def asks_to_wait(status: int | None, retry_after: timedelta | None) -> bool:
    """Say whether the receiver is there and asks for a wait: 429 or 503 with `Retry-After`."""
    return status in _ASK_TO_WAIT and retry_after is not None


@dataclass(frozen=True, slots=True)
class DeliveryOutcome:
    """What became of an attempt: it was sent, or comes `again` after a pause, or has failed for good.

    `is_gone` says that the receiver wants to hear no more. Of one that `is_uncertain` nobody knows whether it has
    arrived. After it everything to its channel waits for `pause`; a `problem` is one of the whole channel. The
    receiver calls what was sent `external_id`, and its thread `moved_to` from now on. Where it only asked for a wait
    (`is_wait`), the attempt does not count.
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
    """Return what an answer means for a delivery of this `age` after so many `tries`, this one included, and `waits`.

    Every status but a success is a failure, a redirect too: nobody has checked where that leads.
    """
    if 200 <= status < 300:
        return DeliveryOutcome(response_status=status)
    if status == _GONE:
        message = "the receiver answered 410 Gone: it wants to hear no more"
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
"""Until another attempt, perhaps of another worker, at what this process could not send as it is configured."""


def handed_back(error: ErrorRecord) -> DeliveryOutcome:
    """Return the outcome of an attempt for which this process lacks something: it is no try of the receiver's."""
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
    """Return what an error means for a delivery that was tried so often: one that is not `retryable` is the last.

    A wait that the receiver asks for is no attempt, until the delivery is older than `LONGEST_WAITED`; it is longer
    after so many `waits` before, up to five minutes unless the receiver asks for more.
    """
    if asks_to_wait(response_status, retry_after) and age < LONGEST_WAITED:
        return DeliveryOutcome(
            error, delivery_pause(min(waits + 1, _LONGEST_WAIT), retry_after, jitter), response_status, is_wait=True
        )
    again = delivery_pause(tries, retry_after, jitter) if error.retryable else None
    return DeliveryOutcome(error, again, response_status)


@dataclass(frozen=True, slots=True)
class Delivery:
    """One delivery that is to be sent to the address `target` now.

    `attempt` is its fencing token, `tries` which try it is since it was asked for. A callback has no endpoint. A
    message goes to a `channel`, whose `config` is null where nobody sends to it any more; so many of its `parts` have
    arrived, and one that `is_doubtful` perhaps more. Its body is empty where the conversation does not say it any
    more. Its `age` counts from its event.
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
"""What an endpoint can be told; `job.*`, `batch.*` and `channel.*` stand for all of their kind."""

MAX_TARGET_CHARS = 2_000

EVENT_NAMES = (*EVENTS, *dict.fromkeys(f"{event.partition('.')[0]}.*" for event in EVENTS))
"""What an endpoint may name."""


def checked_url(
    url: str, field: str, allowed: Collection[str] = (), setting: str = "PLANQ_WEBHOOK_ALLOW_HOSTS"
) -> str:
    """Return an address that something may be sent to; raises `InvalidRequest`, which names the `field`.

    An address of a private network, and this machine, are refused unless the host is among `allowed` (`host` or
    `host:port`, in lower case), which `setting` lists. What a name leads to is known only when something is sent: it
    is checked again then.
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
    if not {host, f"{host}:{port or _default_port(parts)}"} & set(allowed) and (reason := _why_local(host)):
        raise InvalidRequest(f"{field}: {capped(host, 100)!r} is {reason}; an operator can allow it by {setting}")
    return url


def checked_events(events: Sequence[str]) -> list[str]:
    """Return names of events, each once, in the order given; raises `InvalidRequest` for none, or an unknown one."""
    unknown = [event for event in events if event not in EVENT_NAMES]
    if unknown or not events:
        found = ", ".join(repr(capped(event, 40)) for event in unknown[:10]) or "none"
        raise InvalidRequest(f"events: expected one or more of {', '.join(EVENT_NAMES)}, found {found}")
    return list(dict.fromkeys(events))


def _default_port(parts: SplitResult) -> int:
    return 443 if parts.scheme == "https" else 80


def _why_local(host: str) -> str | None:
    if host == "localhost" or host.endswith(".localhost"):
        return "a loopback address"
    try:
        return why_refused(ipaddress.ip_address(host))
    except ValueError:
        return None  # a name


SIGNING_ENTROPY_BYTES = 32
"""What one secret takes; the standard wants 24 to 64 bytes."""

OVERLAP = timedelta(hours=24)
"""How long after a rotation the secret before signs too."""

_PREFIX = "whsec_"


def signing_secret(entropy: bytes) -> str:
    """Return the secret that these fresh random bytes (`SIGNING_ENTROPY_BYTES`) make."""
    if len(entropy) != SIGNING_ENTROPY_BYTES:
        raise ValueError(f"expected {SIGNING_ENTROPY_BYTES} random bytes, found {len(entropy)}")
    return _PREFIX + base64.b64encode(entropy).decode()


def signed_headers(message_id: str, moment: datetime, body: str, secrets: Sequence[str]) -> Mapping[str, str]:
    """Return the headers of an attempt that is made at a moment in UTC, signed by each of the secrets.

    The receiver knows a repeat by `webhook-id`; the time is the attempt's own.
    """
    if moment.utcoffset() != timedelta(0):
        # `sign` takes any time for one in UTC (standardwebhooks 1.1).
        raise ValueError(f"expected a time in UTC, found {moment.isoformat()}")
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(int(moment.timestamp())),
        "webhook-signature": " ".join(Webhook(secret).sign(message_id, moment, body) for secret in secrets),
    }
