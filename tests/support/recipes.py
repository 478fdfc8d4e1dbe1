"""The recipes of docs/loops.md, each as Agently writes it and as a loop block."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from planq.shared.agentic.rounds.block import LoopBlock, parse_block
from planq.shared.agentic.rounds.workflow import import_workflow

PAGE = (Path(__file__).parents[2] / "docs" / "loops.md").read_text("utf-8")
RECIPES = ["Another prompt", "Other tools", "A step after the last round", "Another end", "Errors"]
GIVEN = {"myPrompt": "Plan the next calls for $query.\nYou have: ${tools}\n## a comment"}
"""What Agently's caller sets."""


def section_of(heading: str) -> str:
    """The text of the page under a heading, without what stands under deeper ones."""
    found = re.search(rf"^#+ {heading}\n(.*?)(?=^##+ |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found
    return found[1]


def documents(heading: str) -> list[str]:
    """The YAML documents under a heading."""
    return re.findall(r"^```yaml\n(.*?)^```", section_of(heading), re.MULTILINE | re.DOTALL)


def both_forms(heading: str) -> dict[str, Any]:
    """The block of a recipe by its form: `imported` from what Agently writes, `written` as ours."""
    theirs, ours = documents(heading)
    given = {name: text for name, text in GIVEN.items() if f"${{{name}}}" in theirs}
    blocks: dict[str, LoopBlock] = {
        "imported": import_workflow(theirs, given),
        "written": parse_block(yaml.safe_load(ours)),
    }
    return {form: block.to_json() for form, block in blocks.items()}
