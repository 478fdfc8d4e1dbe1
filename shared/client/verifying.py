"""Whether a webhook is genuine, for who receives one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from standardwebhooks import Webhook, WebhookVerificationError

from planq.shared.platform.errors import Unauthorized


def verified(body: bytes | str, headers: Mapping[str, str], secret: str) -> dict[str, Any]:
    """Return what a delivery tells, `{type, timestamp, data}`, once its signature and its time are found right.

    Raises `Unauthorized` where it was not signed by `secret`, was changed, or is more than five minutes old.
    """
    webhook = Webhook(secret)
    try:
        text = body.decode() if isinstance(body, bytes) else body
        webhook.verify(text, dict(headers), json_parse=False)
        document = json.loads(text)
    except (WebhookVerificationError, ValueError) as refused:  # also what is no signature, no text and no JSON
        raise Unauthorized(f"the webhook is not genuine, or too old: {refused}") from refused
    if not isinstance(document, dict):
        raise Unauthorized("the webhook is not genuine: expected a JSON object")
    return document
