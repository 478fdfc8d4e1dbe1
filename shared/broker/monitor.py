"""Flower with all that it shows behind its password: `python -m planq.shared.broker.monitor flower OPTIONS`.

Flower leaves its metrics open, which name every worker and every task (flower 2.2); only `/healthcheck`, which says
nothing else, stays so for supervisors.
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
    """Flower's metrics, for those who may see its pages."""

    get = authenticated(Metrics.get)


def main() -> int:
    """Run Celery's command line, which knows Flower's command; CELERY_BROKER_URL names the broker."""
    app = Celery("planq", set_as_current=False)
    app.conf.update(OWN_EXCHANGES, accept_content=["json"])
    app.set_default()
    open_metrics = (r"/metrics", Metrics)
    urls.handlers[urls.handlers.index(open_metrics)] = (r"/metrics", GuardedMetrics)
    return int(celery() or 0)


if __name__ == "__main__":
    sys.exit(main())
