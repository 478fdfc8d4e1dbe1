"""A newcomer's walk: from `make up` to the answer of the own first job, on the page, without a look into the manual.

What is done stands in the names of the figures. Chromium reads, types as a person does, clicks, and sees the answer.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

from playwright.sync_api import Page, expect

from tests.bench.context import Context
from tests.bench.figures import Figure
from tests.bench.startup import running
from tests.support.browser import PATIENCE_MS, chromium
from tests.support.waiting import eventually

MOST_SECONDS = 60.0
QUESTION = "calculate 24 * 365"
ANSWER = "8760"
KEY_MS = 120.0
"""Between two keys of somebody who types."""

_ADDRESS = re.compile(r"https?://[^\s\x1b]+")


def measure(context: Context) -> list[Figure]:
    """Start planq as `make up` does, and go on where it says."""
    begun = monotonic()
    with tempfile.TemporaryDirectory(prefix="planq-bench-") as name:
        folder = Path(name)
        with running(folder, "--sample") as (_, seconds), chromium() as browser:
            output = folder / "output.txt"
            eventually(lambda: _ADDRESS.search(output.read_text()), 60, what="planq up tells its address")
            found = _ADDRESS.findall(output.read_text())
            figures = [Figure("walk, 1: `make up` until it is healthy", seconds, "s")]
            page = browser.new_page(viewport={"width": 1440, "height": 900})
            page.set_default_timeout(PATIENCE_MS)
            figures += [Figure(f"walk, {step}", taken, "s") for step, taken in _steps(page, found[0])]
    context.say(f"  walked in {monotonic() - begun:.0f} s, with the browser's start and the end of all")
    return [*figures, Figure("walk, in all", sum(one.value for one in figures), "s", MOST_SECONDS)]


def _steps(page: Page, address: str) -> Iterator[tuple[str, float]]:
    """Go through the page; yield each step with its seconds."""
    at = monotonic()

    def taken() -> float:
        nonlocal at
        before, at = at, monotonic()
        return at - before

    page.goto(address)
    expect(page.get_by_label("What is to be done")).to_be_visible()
    yield "2: open the address that it prints first", taken()
    page.get_by_label("What is to be done").press_sequentially(QUESTION, delay=KEY_MS)
    yield f"3: type {QUESTION!r}", taken()
    page.get_by_role("button", name="Submit").click()
    page.wait_for_url(re.compile(r"/ui/jobs/[0-9a-f-]{36}"))
    yield "4: submit it", taken()
    expect(page.locator("#answer")).to_contain_text(ANSWER)
    yield "5: read its answer", taken()
