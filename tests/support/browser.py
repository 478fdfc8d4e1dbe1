"""One Chromium for all tests of a process, and in each test a page that notes what a browser complains about."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.support.lacking import require

PATIENCE_MS = 120_000
"""A browser on a busy machine may need seconds for a page; a test that fails takes this long."""

_ARGUMENTS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--no-first-run"),
)


def lacking() -> str | None:
    """Return what is lacking for tests in a browser; None for nothing."""
    found = shutil.which("chromium")
    return None if found else "Chromium is not installed: `apt-get install chromium` (Debian) brings it"


@contextmanager
def chromium() -> Iterator[Browser]:
    """Lend a browser; skips the test where there is none."""
    require(lacking())
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=list(_ARGUMENTS), timeout=PATIENCE_MS
        )
        try:
            yield browser
        finally:
            browser.close()


_COUNT_JUMPS = """
  window.jumped = 0;
  new PerformanceObserver((list) => {
    for (const one of list.getEntries()) if (!one.hadRecentInput) window.jumped += one.value;
  }).observe({ type: "layout-shift", buffered: true });
"""

MOST_JUMP = 0.1
"""The sum of a page's layout shifts that web.dev calls good."""

_VIOLATIONS = {"resultTypes": ["violations"]}
_OF_COLOURS = {**_VIOLATIONS, "runOnly": ["color-contrast", "link-in-text-block"]}
"""For the second scheme of a page: what of axe depends on colours; both schemes are the same page otherwise."""


class Visitor:
    """A browser's page at an API, and what it has complained of: violations of the policy, errors, failed loads."""

    def __init__(self, browser: Browser, url: str, *, width: int = 1440, scheme: str = "light") -> None:
        """`scheme` is `light` or `dark`."""
        self.context = browser.new_context(
            base_url=url,
            viewport={"width": width, "height": 900},
            color_scheme="dark" if scheme == "dark" else "light",
            reduced_motion="reduce",
        )
        self.context.add_init_script(_COUNT_JUMPS)
        self.context.set_default_timeout(PATIENCE_MS)
        self.context.set_default_navigation_timeout(PATIENCE_MS)
        self.complaints: list[str] = []
        self.page: Page = self.context.new_page()
        self.page.on("console", lambda message: self._hear(message.type, message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))

    def _hear(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.complaints.append(f"{kind}: {text}")

    def jumped(self) -> float:
        """Return how much of the page has moved by itself since it was opened: the sum of its layout shifts."""
        return float(self.page.evaluate("window.jumped"))

    def close(self) -> None:
        """Close the page and forget its cookies."""
        self.context.close()


def check(visitor: Visitor, width: int) -> None:
    """See that nothing keeps people from using the page, light or dark, and that nothing stands beside it."""
    page = visitor.page
    schemes: dict[Literal["dark", "light"], dict[str, Any]] = {"dark": _OF_COLOURS, "light": _VIOLATIONS}
    for scheme, options in schemes.items():
        page.emulate_media(color_scheme=scheme)
        found: list[Any] = Axe().run(page, options=options).response["violations"]
        serious = [(one["id"], one["nodes"][0]["html"]) for one in found if one["impact"] in ("serious", "critical")]
        assert serious == [], (page.url, scheme)
    for shown in (768, width):
        page.set_viewport_size({"width": shown, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= shown, (shown, page.url)
