"""What Prometheus sees of an installation with two processes of the API, one of whose workers is killed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.test_main_job import submit, wait_for
from tests.support.ports import free_port
from tests.support.stack import Stack
from tests.support.waiting import eventually

Series = tuple[str, frozenset[tuple[str, str]]]

ENV = {"PLANQ_TOOLS": "tests.support.tools", "PLANQ_HEARTBEAT_SECONDS": "0.2", "PLANQ_SWEEP_SECONDS": "0.5"}


def scraped(*urls: str) -> Mapping[Series, float]:
    """Return what is counted, as `sum without (instance)` has it."""
    found: Counter[Series] = Counter()
    for url in urls:
        text = httpx.get(f"{url}/metrics", timeout=60).text
        for family in text_string_to_metric_families(text):
            if family.type in ("counter", "histogram") and family.name.startswith("planq_"):
                for sample in family.samples:
                    found[sample.name, frozenset(sample.labels.items())] += sample.value  # type: ignore[assignment]
    return found


def total(series: Mapping[Series, float], name: str, **labels: str) -> float:
    return sum(value for (of, own), value in series.items() if of == name and labels.items() <= set(own))


def test_totals_are_right_over_two_processes_and_never_fall(
    make_stack: Callable[..., Stack], database_url: str, valkey_url: str
) -> None:
    stack = make_stack(database_url, valkey_url, env=ENV)
    stack.start(io=2)
    port = str(free_port())
    stack.run("api-2", "-m", "planq.api", env={"PLANQ_PORT": port})
    urls = stack.url, f"http://127.0.0.1:{port}"
    eventually(lambda: _is_up(urls[1]), 60, what="the second process answers")

    def run(jobs: int) -> None:
        calls = [
            {"tool_name": "calculate", "arguments": {"expression": "1 + 1"}},
            {"tool_name": "test_crunch", "arguments": {"seconds": 0}},
        ]
        ids = [submit(stack, input="Count.", plan={"calls": calls}, respond="model")["id"] for _ in range(jobs)]
        assert {wait_for(stack, one)["status"] for one in ids} == {"completed"}

    def has_counted(jobs: int) -> bool:
        nonlocal seen
        now = scraped(*urls)
        fallen.update({series: value for series, value in seen.items() if now.get(series, 0) < value})
        seen = now
        counted = {
            "created": total(now, "planq_jobs_created_total"),
            "ended": total(now, "planq_jobs_ended_total", outcome="succeeded"),
            "times": total(now, "planq_job_seconds_count"),
            "plans": total(now, "planq_plans_created_total", outcome="accepted"),
            "executions": total(now, "planq_plan_execution_duration_seconds_count"),
            "steps": total(now, "planq_steps_ended_total", outcome="succeeded") / 2,
            "answers": total(now, "planq_answer_seconds_count"),
            "models": total(now, "planq_llm_calls_total", outcome="succeeded", purpose="respond"),
            "model times": total(now, "planq_llm_call_seconds_count"),
            "io tools": total(now, "planq_tool_calls_total", tool="calculate", outcome="succeeded"),
            "cpu tools": total(now, "planq_tool_calls_total", tool="test_crunch", outcome="succeeded"),
            "tool times": total(now, "planq_tool_call_seconds_count") / 2,
        }
        assert counted == dict.fromkeys(counted, jobs)
        return True

    fallen: dict[Series, float] = {}
    seen: Mapping[Series, float] = {}
    run(6)
    eventually(lambda: has_counted(6), 60, every=0.2, what="six jobs are counted, once")
    stack.kill("io-1")
    stack.terminate("cpu-1")
    stack.run_worker("cpu", 2)
    run(4)
    eventually(lambda: has_counted(10), 60, every=0.2, what="ten jobs are counted, once")
    assert fallen == {}
    reporting = [url for url in urls if "planq_reports_fleet 1.0" in httpx.get(f"{url}/metrics", timeout=60).text]
    assert len(reporting) == 1

    stack.kill("api-2" if reporting == [urls[1]] else "api")
    (left,) = set(urls) - set(reporting)
    eventually(lambda: _reports(left), 60, every=0.2, what="the other process reports")
    after = scraped(left)
    own = ("planq_http_", "planq_channel_updates")
    assert {
        of: (seen[of], after.get(of)) for of in seen if not of[0].startswith(own) and after.get(of, 0) < seen[of]
    } == {}


def _is_up(url: str) -> bool:
    try:
        return httpx.get(f"{url}/healthz", timeout=5).status_code == httpx.codes.OK
    except httpx.TransportError:
        return False


def _reports(url: str) -> bool:
    return "planq_reports_fleet 1.0" in httpx.get(f"{url}/metrics", timeout=60).text
