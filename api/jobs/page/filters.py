"""The filter of jobs in addresses and forms: one for the list, and for what is done to all that fit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from planq.api.page.rendering import page_url
from planq.shared.platform.errors import InvalidRequest
from planq.shared.subjects.jobs.selection import FILTER_FIELDS

FORM_NAMES = tuple(one.form for one in FILTER_FIELDS)
_CHIPS = {
    **{one.form: one.chip for one in FILTER_FIELDS if one.name not in ("status", "words")},
    "q": "“{}”",
    "children": "with child jobs",
    "tenant": "tenant {}",
}
_MOST_CHARS = 4_000


def fields_given(params: Mapping[str, str], *more: str) -> dict[str, str]:
    """Return what an address or a form has of the filter, and of `more`; what is not there is empty."""
    return {name: params.get(name, "")[:_MOST_CHARS].strip() for name in (*FORM_NAMES, *more)}


def filter_given(fields: Mapping[str, str]) -> dict[str, Any]:
    """Return the filter as the API takes it, metadata as text; raises `InvalidRequest` for what is no number."""
    wanted: dict[str, Any] = {}
    for one in FILTER_FIELDS:
        if text := fields.get(one.form):
            try:
                wanted[one.name] = float(text) * one.unit if one.kind is float else text
            except ValueError:
                raise InvalidRequest(f"{one.form}: expected a number, found something else") from None
    if text := wanted.get("metadata"):
        wanted["metadata"] = _metadata_in(text)
    return wanted


def _metadata_in(text: str) -> str:
    """Return metadata as JSON, from JSON or from `name=value, …`; what is neither stays, and the API refuses it."""
    pairs = [part.partition("=") for part in text.split(",")]
    if text.startswith("{") or not all(name.strip() and mark for name, mark, _ in pairs):
        return text
    return json.dumps({name.strip(): value.strip() for name, _, value in pairs})


def address_of(path: str, fields: Mapping[str, str], **more: str) -> str:
    """Return the address of a page with these fields, without those that are empty."""
    given = {name: value for name, value in {**fields, **more}.items() if value}
    return page_url(path) + (f"?{urlencode(given)}" if given else "")


def chips_of(path: str, fields: Mapping[str, str]) -> list[dict[str, str]]:
    """Return what is chosen, each with the address of the list without it."""
    return [
        {"text": label.format(fields[name]), "href": address_of(path, fields, **{name: ""})}
        for name, label in _CHIPS.items()
        if fields.get(name)
    ]
