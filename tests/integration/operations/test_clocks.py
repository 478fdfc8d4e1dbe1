"""Clocks that are an hour wrong: database time decides, so nothing fires early, late or twice."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Any

import httpx
import pytest

from tests.integration.operations.conftest import LEASE_SECONDS, Site
from tests.support.ports import free_port
from tests.support.tiers import some
from tests.support.waiting import eventually

SKEWED = ("-m", "tests.support.skewed")
HOUR = 3_600
SLACK = 60.0
"""What a busy machine may add to any of the seconds below; an hour is far beyond."""


def start(site: Site, **skews: int) -> None:
    """Start an API whose clock is right, and workers (`io_1=HOUR`) whose clocks are not."""
    site.stack.run("api", "-m", "planq.api")
    for name, seconds in skews.items():
        pool = name.partition("_")[0]
        site.stack.run(
            name, *SKEWED, str(seconds), "planq.worker", pool, "--concurrency", "20" if pool == "io" else "2"
        )
    site.stack.wait_ready()


def seconds_of(step: dict[str, Any]) -> float:
    times = [datetime.fromisoformat(step[name]) for name in ("started_at", "finished_at")]
    return (times[1] - times[0]).total_seconds()


def test_the_launcher_sets_a_clock_wrong(make_site: Callable[..., Site]) -> None:
    site = make_site()
    start(site, io_1=-HOUR, cpu_1=HOUR)

    job = site.ended(site.submit(("now", {})))

    told = datetime.fromisoformat(job["steps"][0]["output"]["iso"])
    assert abs((datetime.now(UTC) - told).total_seconds() - HOUR) < 60


def test_timers_retries_and_time_outs_keep_their_time(make_site: Callable[..., Site], tmp_path: Path) -> None:
    site = make_site()
    start(site, io_1=HOUR, io_2=-HOUR, cpu_1=HOUR, cpu_2=-HOUR)
    timer = [site.submit(("wait", {"seconds": 1.5}), ("now", {})) for _ in range(6)]
    retry = [site.submit(("test_flaky", {"path": str(tmp_path / f"flaky-{n}")})) for n in range(6)]
    crunch = [site.submit(("test_crunch", {"seconds": 0.1})) for _ in range(4)]
    slow = [site.submit(("test_hold", {"seconds": 60}), limits={"step_timeout_seconds": 1.0}) for _ in range(4)]

    for job in map(site.ended, timer):
        assert 1.5 <= seconds_of(job["steps"][0]) < 1.5 + SLACK, "the timer"
    for job in map(site.ended, retry):
        assert (job["steps"][0]["status"], job["steps"][0]["attempt"]) == ("succeeded", 2)
        assert seconds_of(job["steps"][0]) < 2 + SLACK, "the pause before the retry"
    for job in map(site.ended, crunch):
        assert (job["steps"][0]["status"], job["steps"][0]["attempt"]) == ("succeeded", 1)
    for job in map(site.ended, slow):
        assert job["steps"][0]["error"]["code"] == "timeout"
        assert seconds_of(job["steps"][0]) < 3 * (1 + SLACK), "three tries"


def test_leases_are_neither_taken_back_early_nor_late(make_site: Callable[..., Site], tmp_path: Path) -> None:
    site = make_site()
    start(site, io_1=HOUR, io_2=-HOUR, cpu_1=0)
    ledger = tmp_path / "ledger"

    longer_than_a_lease = [
        site.submit(("test_ledger", {"path": str(ledger), "line": str(n), "seconds": 2 * LEASE_SECONDS}))
        for n in range(10)
    ]
    kept = [site.ended(job) for job in longer_than_a_lease]

    assert [(job["steps"][0]["status"], job["steps"][0]["attempt"]) for job in kept] == [("succeeded", 1)] * 10
    assert len(ledger.read_text().splitlines()) == 10, "each effect happened once"


@pytest.mark.parametrize("skew", some([HOUR, -HOUR], -HOUR))
def test_a_dead_worker_is_missed_in_time_whatever_its_clock_said(make_site: Callable[..., Site], skew: int) -> None:
    site = make_site(PLANQ_DETECT_DEAD_PEERS="false")  # as one on another machine: its lease has to end
    start(site, io_1=skew, cpu_1=-skew)
    site.stack.run("io_2", *SKEWED, str(-skew), "planq.worker", "io")
    eventually(lambda: "2 alive" in site.http.get("/statusz").text, 60, what="both workers live")

    job = site.submit(*[("test_hold", {"seconds": 4})] * 40)
    site.running(job, 39)
    site.stack.kill("io_1")
    killed = monotonic()

    steps = site.ended(job)["steps"]
    assert monotonic() - killed < LEASE_SECONDS + 4 + SLACK
    assert {step["status"] for step in steps} == {"succeeded"}
    assert {step["attempt"] for step in steps} == {1, 2}, "what the dead one held ran again, the rest did not"


def test_jobs_of_apis_with_wrong_clocks_are_all_listed(make_site: Callable[..., Site]) -> None:
    site = make_site()
    start(site, io_1=0, cpu_1=0)
    apis = []
    for name, skew in (("late", -HOUR), ("early", HOUR)):
        port = free_port()
        site.stack.run(name, *SKEWED, str(skew), "planq.api", env={"PLANQ_PORT": str(port)})
        apis.append(f"http://127.0.0.1:{port}")
    submitted = []
    with httpx.Client(timeout=30, trust_env=False) as client:
        for _ in range(4):
            for url in (*apis, site.stack.url):
                response = eventually(lambda url=url: _submitted(client, url), 60, what=f"{url} takes a job")  # type: ignore[misc]
                submitted.append(response)
    assert {site.ended(job)["status"] for job in submitted} == {"completed"}

    listed: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        page = site.http.get("/jobs", params={"limit": 5, **cursor}).json()
        listed += [job["id"] for job in page["items"]]
        if page["next_cursor"] is None:
            break
        cursor = {"cursor": page["next_cursor"]}

    assert sorted(listed) == sorted(submitted)
    assert listed == sorted(listed, reverse=True)


def _submitted(client: httpx.Client, url: str) -> str | None:
    try:
        return str(client.post(f"{url}/jobs", json={"input": "hello"}).json()["id"])
    except httpx.TransportError:
        return None
