"""What docs/testing.md shows works as printed."""

from __future__ import annotations

import re
from typing import Any

from planq import tool
from tests.support.pinned_env import ROOT


@tool(effect="unsafe")
async def send_mail(text: str) -> dict[str, bool]:
    """Send a mail."""
    return {"sent": bool(text)}


def test_the_page_works_as_printed() -> None:
    text = (ROOT / "docs/testing.md").read_text("utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    # the one with a cassette is run by tests/integration/cli/test_recorded_models.py
    *here, over_http = (block for block in blocks if "planq_cassette" not in block)
    document = {"name": "clerk", "description": "You book rooms.", "tools": ["book_room"], "strategy": "react"}
    names: dict[str, Any] = {"send_mail": send_mail, "document": document, "__name__": "page"}

    for block in here:
        exec(compile(block, "docs/testing.md", "exec", dont_inherit=True), names)
    tests = [one for name, one in names.items() if name.startswith("test_")]
    for test in tests:
        test()

    assert len(tests) == 3
    assert names["run"].answer == "Booked."
    assert names["run"].steps[0]["output"]["booked"] == "Pisa"
    assert "planq_server" in over_http
