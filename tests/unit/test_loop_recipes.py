"""The page on loops: its recipes in both forms, its defaults, its agent, and the fields that it explains."""

from __future__ import annotations

import re

import pytest
import yaml

from planq.shared.agentic.agents.document import parse_agent
from planq.shared.agentic.rounds.block import LoopBlock, parse_block
from planq.shared.agentic.rounds.guard import GuardLimits
from tests.support.recipes import RECIPES, both_forms, documents, section_of


@pytest.mark.parametrize("heading", RECIPES)
def test_a_recipe_is_the_same_in_both_forms(heading: str) -> None:
    forms = both_forms(heading)

    assert forms["imported"] == forms["written"] != {}


def test_the_guards_limits_are_the_defaults() -> None:
    (text,) = documents("Repeated calls")
    block = parse_block(yaml.safe_load(text))

    assert block.guard is not None
    assert GuardLimits(**block.guard.model_dump()) == GuardLimits()


def test_the_agent_at_the_top_can_be_stored() -> None:
    (text,) = documents("Loops made to measure")

    block = parse_agent(text).loop_block()
    assert block is not None
    assert block.tool_names(["web_search", "http_fetch"]) == ["web_search"]


def test_every_field_of_a_block_is_explained() -> None:
    table = re.findall(r"^\| `(\w+)` \|", section_of("Loops made to measure"), re.MULTILINE)

    assert table == list(LoopBlock.model_fields)
