"""Celery's settings, each with its reason. Celery carries wake-ups only."""

from __future__ import annotations

from typing import Any

from celery import Celery
from kombu import Queue

from planq.shared.broker import names
from planq.shared.broker.lists import TenantLists
from planq.shared.broker.transport import hardened
from planq.shared.kernel.states import OWN_QUEUES, WakeQueue

OWN_EXCHANGES = {
    "control_exchange": names.PREFIX,
    "event_exchange": f"{names.PREFIX}ev",
    "event_queue_prefix": f"{names.PREFIX}ev",
}
"""Own exchanges, so `celery -A shop control shutdown` on the same server does not reach planq's workers."""


def is_redis(broker_url: str) -> bool:
    return broker_url.startswith(("redis://", "rediss://", "redis+socket://"))


def transport_options(broker_url: str, prefix: str = "") -> dict[str, Any]:
    """Return the transport's options; on Redis all names begin with `prefix`."""
    if not is_redis(broker_url):
        return {"confirm_publish": True}  # a publish that the broker did not take must not look like one that it took
    return {
        "ack_emulation": False,  # see `transport`
        "priority_steps": [0],  # one list a queue instead of four; each of our priorities has its own queue
        "socket_timeout": 5,  # None, the default, lets a publish hang for ever on a half-open connection
        "socket_connect_timeout": 5,
        "socket_keepalive": True,
        # A half-open BRPOP is dropped 4 to 7 s after its last answer: kombu 5.7 waits for the interval and one second
        # more, and looks once an interval. kombu's own 25 s would leave a worker deaf for up to 51 s.
        "health_check_interval": 3,
        "client_name": "planq",
        "global_keyprefix": prefix,
    }


def create_celery(broker_url: str, *, prefix: str = "") -> Celery:
    """Return a Celery application without opening a connection; names begin with `prefix`."""
    app = Celery("planq", broker=hardened(broker_url), backend=None, set_as_current=False)
    app.conf.update(
        task_ignore_result=True,  # results live in the database
        task_serializer="json",
        accept_content=["json"],  # a message can never carry code
        task_acks_late=True,  # bounds what a worker takes: one unacknowledged message per slot
        task_acks_on_failure=True,  # the outcome is in the database; redelivery is the sweeper's business
        task_acks_on_timeout=True,
        task_reject_on_worker_lost=False,  # a poison step would loop; leases count losses and give up
        # Celery waits so long for the result of a process that died, its default is 10 s; here the result is in the
        # database already, or there is none. It looks every 5 s.
        worker_lost_wait=1.0,
        worker_prefetch_multiplier=1,  # nothing waits behind a slow step in a worker's memory
        task_publish_retry=False,  # the sweeper retries
        task_create_missing_queues=False,
        task_default_queue=names.queue(WakeQueue("io")),
        task_queues=[Queue(name, routing_key=name) for queue in OWN_QUEUES for name in names.lists(queue)],
        task_queue_max_priority=None,
        task_send_sent_event=False,
        worker_send_task_events=False,  # costs half the throughput; Flower switches them on where it runs
        worker_hijack_root_logger=False,
        worker_enable_remote_control=True,  # Flower; `planq.worker.celery.control` says what is carried out
        **OWN_EXCHANGES,
        worker_cancel_long_running_tasks_on_connection_loss=False,  # the lease decides, not the connection
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        # An error reply (no room on the disk, no memory, a replica) is a broker that is away, not a worker's end.
        broker_channel_error_retry=True,
        broker_connection_timeout=5,
        broker_pool_limit=4,
        broker_pool_acquire_timeout=5,
        broker_heartbeat=10,  # until two are missed RabbitMQ hands wake-ups to a consumer that has vanished
        broker_transport_options=transport_options(broker_url, prefix),
    )
    app.planq_lists = TenantLists()
    return app


def known_queue(app: Celery, name: str) -> Queue:
    """Return a queue of an application; an unknown one is added."""
    queues = app.amqp.queues
    if name not in queues:
        queues.add(Queue(name, routing_key=name))
    return queues[name]
