"""B29: what choosing insights costs a plan, with 100 000 stored, of a hundred tenants."""

from __future__ import annotations

import asyncio
import statistics
from time import perf_counter

import psycopg

from planq.shared.agentic.models.vocabulary import count_tokens
from planq.shared.kernel.new_ids import new_id
from planq.shared.platform.database import Database
from planq.shared.subjects.insights.learning import PostgresInsightOffers
from planq.shared.subjects.insights.offering import fitting
from tests.bench.context import Context
from tests.bench.figures import Bound, Figure

STORED, TENANTS, TOOLS = 100_000, 100, 20
PLANS, QUICK_PLANS = 1_000, 200
MOST_MS = 3.0
_TEXT = (
    "convert money invoice customer report weather search book flight hotel summary mail order refund stock price "
    "chart table page note"
)
WORDS = _TEXT.split()

_FILL = """
INSERT INTO insights (id, tenant_id, kind, digest, tool_name, lesson, body, search, seen, expires_at, last_seen_at)
SELECT planq_new_id(), t.id, (ARRAY['correction', 'failure', 'course'])[1 + n %% 3], n::text,
       'tool' || n %% %(tools)s, 'A lesson.', '{}', planq_insight_base(t.id, 'tool', '{}')
           || planq_insight_words(w[1 + n %% 20] || ' ' || w[1 + n / 20 %% 20] || ' ' || w[1 + n / 7 %% 20]),
       1, now() + interval '9 days', now() - n * interval '1 second'
FROM (SELECT 'tenant-' || i AS id FROM generate_series(1, %(tenants)s) i) t,
     generate_series(1, %(each)s) n, (SELECT %(words)s::text[] AS w) w
"""


def measure(context: Context) -> list[Figure]:
    """Fill the table, and choose for plans one after the other."""
    url = context.create_migrated()
    with psycopg.connect(url, autocommit=True) as connection:
        given = {"tools": TOOLS, "tenants": TENANTS, "each": STORED // TENANTS, "words": list(WORDS)}
        connection.execute(_FILL, given)
        connection.execute("VACUUM ANALYZE insights")
    took = asyncio.run(_choose(url, context.either(PLANS, QUICK_PLANS)))
    name = "B29 insights chosen for a plan, 100 000 stored"
    return [
        Figure(f"{name}: p50", statistics.median(took), "ms", bounds=[Bound(MOST_MS)], samples=took),
        Figure(f"{name}: p95", statistics.quantiles(took, n=20)[-1], "ms"),
    ]


async def _choose(url: str, plans: int) -> list[float]:
    """Return how many milliseconds each choice took, the first ones left out: they warm a cache."""
    tools = [f"tool{number}" for number in range(TOOLS)]
    took = []
    async with Database(url, max_connections=1) as database:
        offers = PostgresInsightOffers(database)
        for number in range(plans + 20):
            said = " ".join(WORDS[(number + step) % len(WORDS)] for step in (0, 3, 9))
            begun = perf_counter()
            found = await offers.find(f"tenant-{1 + number % TENANTS}", new_id(), f"please {said}", tools)
            if not fitting(found.found, count_tokens):
                raise AssertionError("nothing was found")
            took.append(1_000 * (perf_counter() - begun))
    return took[20:]
