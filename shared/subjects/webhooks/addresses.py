"""Where callers want to be told, and of what: which addresses and events an endpoint may name."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Sequence
from urllib.parse import SplitResult, urlsplit

from planq.shared.platform.addresses import why_refused
from planq.shared.platform.errors import InvalidRequest, capped

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
