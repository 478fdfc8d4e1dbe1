"""Spellings of tool names (docs/decisions.md, D24)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planq.shared.agentic.tools.names import (
    canonical,
    display,
    join,
    resolve_name,
    split_name,
    suggestion,
    to_registry,
)
from planq.shared.platform.errors import InvalidRequest
from tests.model.shapes import to_dotted


@pytest.mark.parametrize("spelling", ["web_fetch", "web.fetch", "web-fetch", "web/fetch"])
def test_every_spelling_finds_the_registered_name(spelling: str) -> None:
    assert resolve_name(spelling, ["web_fetch", "other"]) == "web_fetch"
    assert to_registry(spelling) == "web_fetch"
    assert to_dotted(spelling) == "web.fetch"


def test_an_exact_name_wins_and_otherwise_ambiguity_is_an_error() -> None:
    registered = {"web_fetch": 1, "web-fetch": 2}
    assert resolve_name("web-fetch", registered) == "web-fetch"
    with pytest.raises(InvalidRequest, match="ambiguous") as refused:
        resolve_name("web.fetch", registered)
    assert refused.value.details["candidates"] == ["web-fetch", "web_fetch"]


def test_unknown_and_reserved_names_are_not_guessed() -> None:
    assert resolve_name("ghost", ["web_fetch"]) is None
    assert resolve_name("cp..agent", ["cp__agent"]) is None
    assert resolve_name("cp__agent", ["cp__agent"]) == "cp__agent"
    assert to_dotted("__planning__") == "__planning__"


@given(st.from_regex(r"[ab_]{1,3}(-[ab_]{1,3}){0,3}", fullmatch=True))
def test_canonical_names_stay_as_they_are(name: str) -> None:
    assert canonical(name) == name


@given(st.text(alphabet="ab/", min_size=1, max_size=6), st.text(alphabet="ab", min_size=1, max_size=4))
def test_joining_and_splitting_undo_each_other(service: str, method: str) -> None:
    assert split_name(join(service, method)) == (service, method)


def test_a_name_without_a_dash_is_a_service() -> None:
    assert split_name("fetch") == ("fetch", "")
    assert split_name("web_fetch") == ("web/fetch", "")
    assert split_name("web-fetch") == ("web", "fetch")
    assert [display(name) for name in ("fetch", "web_fetch", " ")] == ["fetch", "web_fetch", ""]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("knowledge_serch", "did you mean 'knowledge_search'? "),
        ("Knowledge.Search", "did you mean 'knowledge_search'? "),
        ("calcualte", "did you mean 'calculate'? "),
        ("zebra", ""),
        ("x" * 100_000, ""),
    ],
)
def test_the_nearest_name_is_suggested(name: str, told: str) -> None:
    assert suggestion(name, ["calculate", "knowledge_search", "now"]) == told
