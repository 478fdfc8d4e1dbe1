"""No pattern of planq's explodes: on texts made of its own parts, its time grows no faster than n log n.

Strangers send patterns in schemas only, and jsonschema-rs matches these (`shared/agentic/schema/patterns.py`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest

from planq.worker.models.offline import grammar
from tests.support.patterns import Place, collected, explosion

MADE_LATER: Mapping[tuple[str, str], str] = {
    ("shared/subjects/tenants/prompt.py", "text.replace(' ', '\\\\s+')"): r"You\s+are\s+an\s+agent",
    ("shared/subjects/tenants/config.py", "'|'.join(['', *meant])"): "|one.*|two.",
    (
        "shared/kernel/schema_version.py",
        "f\"(?<!TRIGGER )(?<![.\\\\w'])(?:{'|'.join(sorted(names))})\\\\b\"",
    ): r"(?<!TRIGGER )(?<![.\w'])(?:planq_end|planq_end_jobs)\b",
    ("shared/platform/redact.py", "'|'.join(map(_found_as, longest_first))"): "secret|sec",
    (
        "worker/models/reading/texts.py",
        "re.escape(mark) if mark else '\\\\Z(?!)'",
    ): r"<\|END_THINKING\|>",
    ("worker/models/offline/grammar.py", "pattern"): "|".join(one.pattern for one, _ in grammar._VERBS),
    (
        "worker/models/offline/responder.py",
        "f'(?<![\\\\w-]){re.escape(name)}(?![\\\\w-])'",
    ): r"(?<![\w-])a\-name(?![\w-])",
}
"""Patterns that are made of what is known later, with an example of each; those of schemas are anybody's."""

PLACES = collected()

OF_OPERATORS = frozenset(
    {("worker/tools/mcp/config.py", "_VARIABLE"), ("shared/platform/redact.py", "_SECRET_PARAMETER")}
)
"""Patterns, by their names, over what an operator alone writes: a file of MCP servers, addresses in settings."""


@pytest.mark.parametrize(
    "place",
    [one for one in PLACES if one.pattern is not None and (one.path, one.name) not in OF_OPERATORS],
    ids=lambda one: f"{one.path}:{one.text[:40]}",
)
def test_the_time_of_a_pattern_grows_no_faster_than_n_log_n(place: Place) -> None:
    assert place.pattern is not None
    assert explosion(place.pattern, place.methods) is None


@pytest.mark.parametrize(
    "pattern", [r"<\?xml[^>]*>", r"(a+)+$", r"\s+$", r"\{\{(?:(.*?)(\}\}))?", r"(?:x|x)*y", r"(\w*,)*z"]
)
def test_a_pattern_that_explodes_is_found(pattern: str) -> None:
    assert explosion(re.compile(pattern), ["finditer"]) is not None


@pytest.mark.parametrize("example", sorted(filter(None, MADE_LATER.values())))
def test_an_example_of_what_is_made_later_does_not_explode(example: str) -> None:
    assert explosion(re.compile(example, re.DOTALL | re.IGNORECASE), ["search", "finditer"]) is None


def test_the_patterns_are_all_seen() -> None:
    assert len(PLACES) > 100
    assert {place.path for place in PLACES} >= {
        "shared/agentic/references/grammar.py",
        "worker/tools/builtin/pure.py",
    }


def test_what_is_made_later_is_listed() -> None:
    later = {(place.path, place.text) for place in PLACES if place.pattern is None}

    assert later == set(MADE_LATER)
