"""What comes with headers, and names of tools."""

from __future__ import annotations

import re

import pytest

from planq.api.http import HttpRefusal
from planq.api.submission import check_key, known_names, trace_id
from planq.shared.domain.errors import InvalidRequest
from planq.shared.domain.tools.definition import ToolDefinition

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
TOOLS = {name: ToolDefinition(name=name) for name in ("web_fetch", "web.fetch", "text_search")}


@pytest.mark.parametrize(
    "header", [f"00-{TRACE}-00f067aa0ba902b7-01", f" cc-{TRACE}-00f067aa0ba902b7-00-what-later "]
)
def test_the_trace_of_a_valid_header_is_taken(header: str) -> None:
    assert trace_id(header) == TRACE


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        TRACE,
        f"ff-{TRACE}-00f067aa0ba902b7-01",
        f"00-{'0' * 32}-00f067aa0ba902b7-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-00f067aa0ba902b7-01",
        f"00-{TRACE}-00f067aa0ba902b7",
    ],
)
def test_any_other_header_gives_a_fresh_trace(header: str | None) -> None:
    first, second = trace_id(header), trace_id(header)

    assert re.fullmatch("[0-9a-f]{32}", first)
    assert first not in (second, TRACE)


def test_a_key_is_kept_as_it_came() -> None:
    assert check_key(None) is None
    assert check_key("a" * 255) == "a" * 255
    assert check_key('"x-1"') == '"x-1"'


@pytest.mark.parametrize("key", ["", "a b", "\n", "é", "a" * 256])
def test_a_key_that_is_none_is_refused(key: str) -> None:
    with pytest.raises(HttpRefusal, match="Idempotency-Key"):
        check_key(key)


def test_tools_are_known_in_every_spelling_once_and_in_order() -> None:
    assert known_names(["text/search", "web.fetch", "text_search"], TOOLS) == ["text_search", "web.fetch"]


def test_tools_that_are_unknown_or_ambiguous_are_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"'a', 'b'; known tools are 'text_search', 'web\.fetch', 'web_fetch'"):
        known_names(["a", "text_search", "b"], TOOLS)
    with pytest.raises(InvalidRequest, match="ambiguous"):
        known_names(["web-fetch"], TOOLS)
