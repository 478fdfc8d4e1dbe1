"""A reader of server-sent events, as strict as browsers are."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx


@dataclass(frozen=True)
class Frame:
    """An event as a browser hands it on; comments and `retry` are none."""

    id: str | None
    event: str
    data: Any


def frames(response: httpx.Response) -> Iterator[Frame]:
    """Yield the frames of an answer that is being read; one that is not whole at the end is dropped."""
    fields: dict[str, str] = {}
    for line in response.iter_lines():
        if line:
            name, _, value = line.partition(":")
            fields[name] = value.removeprefix(" ")
        else:
            if "data" in fields:
                yield Frame(fields.get("id"), fields["event"], json.loads(fields["data"]))
            fields = {}
