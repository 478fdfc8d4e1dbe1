"""The shop's API: takes an order in, and leaves the rest to its Celery worker."""

from shared import database
from worker import fulfil


def place_order(sku: str, count: int) -> int:
    """Store an order, and return its number."""
    with database() as connection:
        row = connection.execute(
            "INSERT INTO jobs (sku, count) VALUES (%s, %s) RETURNING id", (sku, count)
        ).fetchone()
    assert row is not None
    fulfil.delay(row[0], sku, count)
    return int(row[0])
