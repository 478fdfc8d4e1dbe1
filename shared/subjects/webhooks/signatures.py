"""How a delivery is signed: Standard Webhooks, symmetric (https://www.standardwebhooks.com, Signature scheme)."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from standardwebhooks import Webhook

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
