"""The shop's Celery worker, as before: `celery -A worker worker`. What takes several steps it hands on to planq."""

from celery import Celery

from planq import Client
from shared import BROKER, database

app = Celery("shop", broker=BROKER)


@app.task(acks_late=True)
def fulfil(order: int, sku: str, count: int) -> None:
    """Let planq carry an order out; a repeat of this task finds the same job."""
    reserve = {"tool_name": "reserve", "arguments": {"sku": sku, "count": count}}
    tell = {"tool_name": "confirm_order", "arguments": {"order": order, "left_over": "$0.output.left_over"}}
    with Client() as planq, database() as connection:
        job = planq.submit(plan={"calls": [reserve, tell]}, idempotency_key=f"order-{order}")
        connection.execute("UPDATE jobs SET planq_job = %s WHERE id = %s", (job.id, order))
