"""Styles, scripts and pictures of the pages: each under a name that holds its hash, so that browsers may keep it."""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from planq.api.access.sessions import UI
from planq.api.http.prefix import below_prefix

_FOLDER = Path(__file__).parent / "assets"
_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


class Asset(NamedTuple):
    """One file as it is served."""

    media_type: str
    body: bytes


@cache
def assets() -> dict[str, Asset]:
    return {_served_name(path): Asset(_TYPES[path.suffix], path.read_bytes()) for path in _paths()}


@cache
def _names() -> dict[str, str]:
    return {path.name: _served_name(path) for path in _paths()}


def _paths() -> list[Path]:
    return [path for path in sorted(_FOLDER.iterdir()) if path.suffix in _TYPES]


def _served_name(path: Path) -> str:
    return f"{path.stem}.{sha256(path.read_bytes()).hexdigest()[:16]}{path.suffix}"


def asset_url(name: str) -> str:
    """Return the address of a file for the present request; raises `KeyError` for what is none."""
    return below_prefix(f"{UI}/assets/{_names()[name]}")
