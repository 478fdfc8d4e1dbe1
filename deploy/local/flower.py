"""The password of Flower, because its page shows the content of jobs."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from planq.shared.platform.data_folder import kept_text
from planq.shared.platform.errors import Misconfigured

FLOWER_USER = "planq"


def flower_password(data: Path) -> str:
    """Return PLANQ_FLOWER_PASSWORD, or a password created in the data folder; raise `Misconfigured`."""
    if given := os.environ.get("PLANQ_FLOWER_PASSWORD"):
        if not (given.isascii() and given.isprintable() and "," not in given):
            raise Misconfigured("PLANQ_FLOWER_PASSWORD: expected visible ASCII characters, and no comma among them")
        return given
    return kept_text(data, "flower-password", lambda: secrets.token_urlsafe(12))
