"""What `/metrics` shows can be read by Prometheus' own parser, keeps to its conventions, and stands in the docs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from planq.api.metrics.exposition import COUNTERS, HISTOGRAMS
from planq.shared.kernel.states import Pool
from tests.integration.api.conftest import Api

PAGE = (Path(__file__).parents[3] / "docs" / "metrics.md").read_text("utf-8")
UNITS = ("_seconds", "_usd")


@pytest.fixture
def families(api: Api) -> Sequence[Metric]:
    api.jobs.register_worker(Pool.IO)
    api.submit()
    api.http.get("/metrics")
    found = text_string_to_metric_families(api.http.get("/metrics").text)
    own = [one for one in found if one.name.startswith("planq_")]
    return [one for one in own if not (one.type == "gauge" and one.name.endswith("_created"))]  # the client's own


def test_names_keep_to_the_conventions(families: Sequence[Metric]) -> None:
    shown = [one.name for one in families]
    assert len(shown) == len(set(shown))
    assert {one.metric for one in (*COUNTERS.values(), *HISTOGRAMS.values())} <= set(shown)
    for family in families:
        assert family.documentation.endswith("."), family
        assert family.type in ("counter", "gauge", "histogram"), family
        if family.type == "histogram":
            assert family.name.endswith("_seconds"), family
        if family.type == "gauge":
            assert not family.name.endswith(("_total", "_count", "_sum")), family
        for unit in UNITS:
            assert unit not in family.name.removesuffix(unit) + "_", f"{family.name}: the unit comes last"


def test_what_is_shown_stands_in_the_docs(families: Sequence[Metric]) -> None:
    names = [one.name + ("_total" if one.type == "counter" else "") for one in families]
    assert [name for name in names if f"`{name}`" not in PAGE] == []


def test_buckets_are_cumulative_and_end_with_all(families: Sequence[Metric]) -> None:
    for family in families:
        buckets: dict[object, list[tuple[float, float]]] = {}
        for sample in family.samples:
            if sample.name.endswith("_bucket"):
                labels = frozenset(item for item in sample.labels.items() if item[0] != "le")
                buckets.setdefault(labels, []).append((float(sample.labels["le"]), sample.value))
        for series in buckets.values():
            assert series == sorted(series)
            assert [number for _, number in series] == sorted(number for _, number in series)
            assert series[-1][0] == float("inf")
