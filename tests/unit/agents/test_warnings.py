"""Warnings on an agent's document that need no knowledge of what is stored or published."""

from __future__ import annotations

from planq.shared.agentic.agents.document import parse_agent
from planq.shared.agentic.agents.warnings import document_warnings

UNQUOTED = """
name: typed
description: You choose.
properties:
  release: {type: string, enum: [1.10, "1.11", 01234, true, no, 2026-11-21]}
  size: {type: string, const: 5, default: false}
  tags:
    type: array
    items: {type: ["string", "null"], examples: [1e3, null, "x"]}
  fitting: {type: [string, integer, boolean], enum: [a, 1, true]}
  amount: {type: number, enum: [1.10], default: 2}
  quoted: {type: string, enum: ["1.10", "01234"], default: null, examples: ["true"]}
  enum: {type: string}
  example: {type: object, default: {type: string, enum: [1]}}
$defs:
  plate: {type: string, enum: [007]}
actions:
  ask: {prompt: Ask., input: {type: object, properties: {year: {type: string, default: 2026}}}}
"""

LISTED = """
name: listed
description: You choose.
actions:
  - {id: first, prompt: Ask.}
  - {id: second, prompt: Ask., input_schema: {type: object, properties: {year: {type: string, const: 2026}}}}
"""


def found(text: str) -> dict[str, str]:
    """Return the messages on unquoted values by their places."""
    warnings = document_warnings(parse_agent(text), tools={}, skills=(), agents=())
    return {one.path: one.message for one in warnings if one.code == "value_unquoted"}


def test_numbers_and_booleans_where_texts_are_declared_are_warned_of() -> None:
    messages = found(UNQUOTED)

    assert sorted(messages) == [
        "/$defs/plate/enum",
        "/actions/ask/input/properties/year/default",
        "/properties/release/enum",
        "/properties/size/const",
        "/properties/size/default",
        "/properties/tags/items/examples",
    ]
    assert "found 1.1, 1234.0, true; put them in quotes" in messages["/properties/release/enum"]
    assert "found 1000.0; put" in messages["/properties/tags/items/examples"]


def test_the_place_in_a_list_of_actions_is_its_number() -> None:
    assert list(found(LISTED)) == ["/actions/1/input_schema/properties/year/const"]
