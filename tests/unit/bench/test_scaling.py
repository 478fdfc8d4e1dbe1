"""The pure parts of the scale-out benchmark: what limits, what grows, what more jobs need, and how it is printed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.bench import scale
from tests.bench.scaling import network
from tests.bench.scaling.forecast import Cost, need
from tests.bench.scaling.host import network_of
from tests.bench.scaling.report import Outcome, Table
from tests.bench.scaling.runs import Sizes
from tests.bench.scaling.usage import TOOLS, Ceilings, Usage, efficiency, limit, shares

CEILINGS = Ceilings(cores=2, commits=10_000, wal_bytes=100e6)
AT_EASE = Usage(
    seconds=10,
    steps=500,
    jobs=50,
    cpu={"api": 1.0, "io-1": 2.0, "io-2": 3.0, "postgres": 1.5, "valkey": 0.5, "client": 0.5},
    others_cpu=0.5,
    commits=1_000,
    transactions=2_000,
    flushes=700,
    wal_bytes=5_000_000,
    messages=200,
    connections=12,
    slots=100,
)
BUSY = replace(AT_EASE, busy_slots=99, tool_seconds=1.9)


def outcome(*efficiencies: float, usage: Usage = BUSY) -> Outcome:
    runs = {1: replace(usage, slots=200, steps=1_000)}
    for count, grown in enumerate(efficiencies, 2):
        runs[count] = replace(usage, slots=200 * count, steps=round(count * 1_000 * grown))
    return Outcome(
        CEILINGS,
        {"here": runs},
        working={2: AT_EASE},
        stored={"steps": 6_000.0, "jobs": 4_000.0},
        idle=AT_EASE,
        idle_workers=2,
        removal=AT_EASE,
    )


@pytest.mark.parametrize(
    ("usage", "resource"),
    [
        (BUSY, TOOLS),
        (replace(BUSY, others_cpu=11.4), "2 cores"),
        (replace(AT_EASE, cpu={"io-1": 9.9, "io-2": 1.0}), "one core of a worker"),
        (replace(AT_EASE, cpu={"api": 9.5}), "one core of the API"),
        (replace(AT_EASE, cpu={"valkey": 9.5}), "one core of the broker"),
        (replace(BUSY, commits=99_000), "commits"),
        (replace(BUSY, wal_bytes=999_000_000), "log bytes"),
    ],
)
def test_the_resource_that_is_used_up_most_is_the_limit(usage: Usage, resource: str) -> None:
    reached = limit(usage, CEILINGS)

    assert reached is not None
    assert reached.resource == resource
    assert reached.used > 0.9


def test_nothing_is_the_limit_while_there_is_more_of_everything() -> None:
    assert limit(AT_EASE, CEILINGS) is None
    assert str(shares(AT_EASE, CEILINGS)[0]) == "2 cores 45%"


def test_used_up_cores_are_told_with_those_who_use_them() -> None:
    reached = limit(replace(AT_EASE, others_cpu=10.5), CEILINGS)

    assert reached is not None
    assert reached.advice == (
        "more cores (other programs 55%, workers 26%, PostgreSQL 8%, the API 5%, the load's client 3%, the broker 3%)"
    )


def test_throughput_is_compared_with_that_of_the_fewest_workers() -> None:
    assert efficiency(replace(BUSY, steps=1_900), replace(BUSY, steps=1_000), 2) == pytest.approx(0.95)


def test_growth_must_be_linear_while_only_the_tools_limit_it() -> None:
    assert outcome(0.95, 0.9).is_linear
    assert not outcome(0.95, 0.89).is_linear
    assert not outcome(0.5, usage=AT_EASE).is_linear  # nothing is used up, and yet it does not grow


def test_growth_may_end_where_something_else_is_used_up() -> None:
    grown = outcome(0.5, usage=replace(BUSY, others_cpu=12.0))

    assert grown.is_linear
    assert "2 cores" in grown.figures()[0].note


def test_a_rate_needs_its_multiple_of_one_job_with_room_on_every_core() -> None:
    cost = Cost.of(AT_EASE, stored_bytes=10_000, removal=replace(AT_EASE, jobs=500, wal_bytes=2_500_000))

    wanted = need(cost, 1_000)

    assert cost.workers == pytest.approx(0.1)  # 5 CPU-seconds for 50 jobs
    assert cost.cpu == pytest.approx(0.16)
    assert wanted.worker_processes == 143  # 100 cores, each 70 % busy
    assert wanted.api_processes == 29
    assert wanted.commits == 20_000
    assert wanted.postgres_cores == 48  # 30 for the jobs and 3 for their removal
    assert wanted.wal_mb == 105
    assert wanted.disk_gb_per_day == 864
    assert need(cost, 0.001).broker_cores == 1  # there is no part of a process


def test_a_table_is_aligned_as_text_and_complete_as_markdown() -> None:
    table = Table("Costs", [["name", "n"], ["commits", "7"]])

    assert table.text() == "Costs\n  name     n\n  commits  7"
    assert table.markdown() == "Costs:\n\n| name | n |\n|---|---|\n| commits | 7 |"


def test_every_form_of_the_outcome_tells_every_load() -> None:
    found = replace(outcome(0.95), no_hosts="`ip` is missing")

    text = scale.printed(found, {"date": "today"}, as_json=False, as_markdown=False)
    marked = scale.printed(found, {"date": "today"}, as_json=False, as_markdown=True)
    read = json.loads(scale.printed(found, {"date": "today"}, as_json=True, as_markdown=False))

    for form in (text, marked):
        assert "date today" in form
        assert "2 here" in form
        assert "10,000 jobs/s" in form
        assert "Not measured on several hosts: `ip` is missing." in form
    assert read["sleeping"]["here"]["2"]["steps"] == 1_900
    assert read["about"] == {"date": "today"}


def test_what_the_program_hands_to_itself_arrives() -> None:
    sizes = Sizes(workers=[1, 3], concurrency=7, tool_seconds=0.25, steps=4, seconds=1.5)

    given = scale.parser().parse_args(["--inside", "net:[1]", "--out", "x", *scale.as_arguments(sizes)])

    assert scale.sizes_of(given) == sizes
    assert given.out == Path("x")


def test_hosts_have_addresses_of_the_range_for_benchmarks() -> None:
    assert [network.address(number) for number in (1, 200)] == ["198.18.77.11/24", "198.18.77.210/24"]
    with pytest.raises(ValueError, match="found 201"):
        network.address(201)


def test_a_machine_without_the_program_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")

    assert network.missing() == "the program `ip` is missing (Debian: apt-get install iproute2)"


@pytest.mark.parametrize(
    ("outside", "up"),
    [(network_of(), "lo UNKNOWN\n"), ("net:[1]", "lo UNKNOWN\neth0 UP\n")],
    ids=["the same network", "a network in use"],
)
def test_the_machines_own_network_is_never_built_in(monkeypatch: pytest.MonkeyPatch, outside: str, up: str) -> None:
    asked: list[tuple[str, ...]] = []

    def ip(*arguments: str) -> str:
        asked.append(arguments)
        return up

    monkeypatch.setattr(network, "ip", ip)

    with pytest.raises(RuntimeError, match="the machine's own"):
        network.Network(outside)
    assert asked == [("-brief", "link", "show", "up")]
