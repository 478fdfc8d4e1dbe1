"""Flower with its metrics behind its password: `python -m planq.shared.broker.monitor flower OPTIONS`.

Flower 2.2 leaves them open, with the names of workers and tasks; only `/healthcheck` stays open for supervisors.
"""

from __future__ import annotations

import sys

from celery import Celery
from celery.bin.celery import main as celery
from flower import urls
from flower.views.monitor import Metrics
from tornado.web import authenticated

from planq.shared.broker.celery_config import OWN_EXCHANGES


class GuardedMetrics(Metrics):  # type: ignore[misc] # Flower has no types
    """Flower's metrics, for users of its pages."""

    get = authenticated(Metrics.get)


def main() -> int:
    """Run Celery's command line with Flower's command; CELERY_BROKER_URL is the broker."""
    app = Celery("planq", set_as_current=False)
    app.conf.update(OWN_EXCHANGES, accept_content=["json"])
    app.set_default()
    open_metrics = (r"/metrics", Metrics)
    urls.handlers[urls.handlers.index(open_metrics)] = (r"/metrics", GuardedMetrics)
    return int(celery() or 0)


if __name__ == "__main__":
    sys.exit(main())
