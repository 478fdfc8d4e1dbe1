"""The shop's tests: from its API through its Celery worker to planq, and back into its own tables."""

import time

import pytest

from api import place_order
from planq import JobFailed
from shared import database


def planq_job(order: int) -> str:
    """Return the planq job of an order, as soon as the shop's worker has noted it."""
    until = time.monotonic() + 60
    with database() as connection:
        while time.monotonic() < until:
            row = connection.execute("SELECT planq_job FROM jobs WHERE id = %s", (order,)).fetchone()
            if row and row[0]:
                return str(row[0])
            time.sleep(0.05)
    raise AssertionError("the shop's worker has not handed the order on")


def test_an_order_is_carried_out(shop, planq_server) -> None:
    order = place_order("lamp", 3)
    with planq_server.client() as client:
        job = client.job(planq_job(order))
        job.result(timeout=60)
        assert job.steps[1]["output"] == {"text": f"Order {order} will be sent; 7 are left."}
    with database() as connection:
        assert connection.execute("SELECT left_over FROM stock WHERE sku = 'lamp'").fetchone() == (7,)


def test_what_is_sold_out_is_not_sold(shop, planq_server) -> None:
    order = place_order("rug", 2)
    with planq_server.client() as client:
        job = client.job(planq_job(order))
        with pytest.raises(JobFailed, match="there are not 2 of rug"):
            job.result(timeout=60)
        assert [step["status"] for step in job.steps] == ["failed", "skipped"]
    with database() as connection:
        assert connection.execute("SELECT left_over FROM stock WHERE sku = 'rug'").fetchone() == (1,)


@pytest.mark.parametrize("table", ["jobs", "stock"])
def test_planq_leaves_the_shops_tables_alone(shop, table: str) -> None:
    with database() as connection:
        found = connection.execute("SELECT schemaname FROM pg_tables WHERE tablename = %s", (table,)).fetchall()
    assert ("public",) in found
