"""The password of Flower: its page shows what jobs are made of, so nobody sees it without one."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from shared.data_folder import usable
from shared.domain.errors import Misconfigured

FLOWER_USER = "planq"


def flower_password(data: Path) -> str:
    """Return PLANQ_FLOWER_PASSWORD, or the password kept in the data folder, made on first use.

    Raises `Misconfigured` when that folder cannot be used, and for a password that Flower cannot compare.
    """
    if given := os.environ.get("PLANQ_FLOWER_PASSWORD"):
        if not (given.isascii() and given.isprintable() and "," not in given):
            raise Misconfigured("PLANQ_FLOWER_PASSWORD: expected visible ASCII characters, and no comma among them")
        return given
    with usable(data):
        return _kept_password(data)


def _kept_password(data: Path) -> str:
    data.mkdir(parents=True, exist_ok=True)
    file = data / "flower-password"
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        if kept := file.read_text("ascii").strip():
            return kept
        descriptor = os.open(file, os.O_WRONLY | os.O_TRUNC)  # an earlier process died before it wrote
    password = secrets.token_urlsafe(12)
    with os.fdopen(descriptor, "w", encoding="ascii") as opened:
        opened.write(password)
    return password
