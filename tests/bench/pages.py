"""B24: what the pages cost in a browser: a long list of jobs, a job of 500 steps, and one whose steps begin and end.

Chromium opens each page with an empty cache. What is measured is its first paint, at which it can be read, since the
server makes it whole. While 500 steps begin and end, the processes that draw the page are watched; in the end it must
show what a page shows that is loaded then.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from time import perf_counter, sleep
from typing import NamedTuple

import httpx
from playwright.sync_api import Browser, CDPSession, Page

from planq.shared.kernel.states import JobStatus
from tests.bench.context import Context
from tests.bench.figures import Figure
from tests.bench.history.measuring import JOBS, QUICK_JOBS, filled
from tests.support.browser import PATIENCE_MS, chromium
from tests.support.stack import Stack

STEPS = 500
CHANGES_PER_SECOND = 50
FIRST_SECONDS = 5.0
"""All steps run at once, and end one after the other."""

MOST_SECONDS, MOST_KB, MOST_CORE = 1.0, 150.0, 30.0
_KB = 1_000.0
_PATIENCE_SECONDS = 300.0

_PAINTED = """() => new Promise((told) => new PerformanceObserver((list) => {
  const first = list.getEntriesByName("first-contentful-paint")[0];
  if (first) told(first.startTime / 1000);
}).observe({ type: "paint", buffered: true }))"""

_SENT = """() => [...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")]
  .filter((one) => !one.name.endsWith("/events")).reduce((sum, one) => sum + one.transferSize, 0)"""

_DIFFERING = """async () => {
  const text = (part) => {
    const copy = part.cloneNode(true);
    for (const time of copy.querySelectorAll("time, .num")) time.remove();
    return copy.textContent.replace(/\\s+/g, " ");
  };
  const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  const regions = [...fresh.querySelectorAll("[data-live]")].filter((one) => one.id !== "facts");
  return regions.filter((one) => text(one) !== text(document.getElementById(one.id))).map((one) => one.id);
}"""


class Opened(NamedTuple):
    """How a page came up: seconds to its first paint, and the bytes that were sent for it."""

    seconds: list[float]
    sent: int


def measure(context: Context) -> list[Figure]:
    """Fill a database, and look at it."""
    jobs = context.either(JOBS, QUICK_JOBS)
    context.say(f"B24 makes a history of {jobs:,} jobs …")
    note = "" if jobs == JOBS else f"a quick run has {jobs:,} jobs in place of {JOBS:,}"
    with (
        filled(context, jobs, tenants=0) as (_, env),
        context.planq(io=1, env={**env, "PLANQ_IO_CONCURRENCY": str(STEPS)}) as stack,
        chromium() as browser,
    ):
        listed = _opened(context, browser, stack, "/ui/jobs", "table.jobs tbody tr")
        job_id = _submitted(stack)
        used, differing = _watched(browser, stack, job_id)
        ended = _opened(context, browser, stack, f"/ui/jobs/{job_id}", "#plan")
    return [
        *_figures(f"B24 the list of {jobs:,} jobs", listed, MOST_KB, note),
        *_figures(f"B24 a job of {STEPS} steps", ended),
        Figure(
            f"B24 {STEPS} running steps, {CHANGES_PER_SECOND} of which end a second: the page's CPU",
            used,
            "%",
            MOST_CORE,
        ),
        Figure("B24 its parts that differ from a page loaded at its end", len(differing), "", limit=0),
    ]


def _figures(what: str, opened: Opened, most_kb: float | None = None, note: str = "") -> list[Figure]:
    seconds = Figure(
        f"{what}: first paint", median(opened.seconds), "s", MOST_SECONDS, samples=opened.seconds, note=note
    )
    return [seconds, Figure(f"{what}: bytes sent", opened.sent / _KB, "kB", most_kb, note=note)]


def _opened(context: Context, browser: Browser, stack: Stack, path: str, awaited: str) -> Opened:
    """Open a page several times, each time with an empty cache; the first time does not count."""
    seconds: list[float] = []
    sent = 0
    for _ in range(context.repeats + 1):
        page = _page(browser, stack)
        page.goto(path)
        page.locator(awaited).first.wait_for(state="attached")
        seconds.append(page.evaluate(_PAINTED))
        sent = page.evaluate(_SENT)
        page.context.close()
    return Opened(seconds[1:], sent)


def _page(browser: Browser, stack: Stack) -> Page:
    page = browser.new_context(base_url=stack.url, viewport={"width": 1440, "height": 900}).new_page()
    page.set_default_timeout(PATIENCE_MS)
    return page


def _submitted(stack: Stack) -> str:
    waits = [FIRST_SECONDS + n / CHANGES_PER_SECOND for n in range(STEPS)]
    calls = [{"tool_name": "bench_wait", "arguments": {"seconds": seconds}} for seconds in waits]
    body = {"input": "a wide job", "plan": {"calls": calls}, "respond": "none"}
    answer = httpx.post(f"{stack.url}/jobs", json=body, timeout=60, trust_env=False).raise_for_status()
    return str(answer.json()["id"])


def _watched(browser: Browser, stack: Stack, job_id: str) -> tuple[float, Sequence[str]]:
    """Look at a job up to its end; return what its page took of a core, in percent, and what it shows wrongly."""
    page = _page(browser, stack)
    page.goto(f"/ui/jobs/{job_id}")
    session = browser.new_browser_cdp_session()
    begun, used = perf_counter(), _drawing_seconds(session)
    while not JobStatus(_status(stack, job_id)).is_terminal:
        if perf_counter() - begun > _PATIENCE_SECONDS:
            raise TimeoutError(f"job {job_id} has not ended after {_PATIENCE_SECONDS:g} s")
        page.wait_for_timeout(500)
    seconds = perf_counter() - begun
    used = _drawing_seconds(session) - used
    differing: Sequence[str] = page.evaluate(_DIFFERING)
    until = perf_counter() + 10
    while differing and perf_counter() < until:
        sleep(0.5)
        differing = page.evaluate(_DIFFERING)
    page.context.close()
    return 100 * used / seconds, differing


def _status(stack: Stack, job_id: str) -> str:
    return str(httpx.get(f"{stack.url}/jobs/{job_id}/why", timeout=60, trust_env=False).json()["status"])


def _drawing_seconds(session: CDPSession) -> float:
    """Return the CPU time of the processes that run pages."""
    found = session.send("SystemInfo.getProcessInfo")["processInfo"]
    return float(sum(one["cpuTime"] for one in found if one["type"] == "renderer"))
