"""kombu's Redis transport, made to survive the loss of Redis.

Stock kombu 5.7.0 ends the worker when Redis goes away while messages are unacknowledged: closing the channel
restores them through a client that no longer exists, and a late acknowledgement on the closed channel raises too.
Here both are let go: the message stays unacknowledged on the server (or is lost with it), the claim makes a
redelivery harmless, and the sweeper publishes what is missing.

Nor does it wait on its connection for remote control: stock kombu reads there without a time-out, in the thread that
takes the messages, so that one event too many on a connection that was lost and made again stops the worker for ever.
"""

from __future__ import annotations

import logging
from typing import Any

import redis.client
from kombu.transport import TRANSPORT_ALIASES, virtual
from kombu.transport import redis as kombu_redis
from kombu.utils.objects import cached_property

_log = logging.getLogger("planq.broker")

_SCHEMES = {"redis": "planqredis", "rediss": "planqrediss", "redis+socket": "planqredis+socket"}


class QoS(kombu_redis.QoS):  # type: ignore[misc]
    """Bookkeeping of unacknowledged messages that tolerates a connection which is gone."""

    def restore_unacked(self, client: Any = None) -> None:
        """Put unacknowledged messages back; when Redis is gone, forget them here."""
        try:
            super().restore_unacked(client)
        except Exception as error:  # whatever redis-py and kombu raise on a torn-down connection
            _log.warning("unacknowledged_not_restored", extra={"count": len(self._delivered), "cause": repr(error)})
            self._delivered.clear()

    def ack(self, delivery_tag: str) -> None:
        """Acknowledge, or forget locally when the channel that delivered the message is closed."""
        if self.channel.closed:
            virtual.QoS.ack(self, delivery_tag)
        else:
            super().ack(delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Reject, or forget locally when the channel that delivered the message is closed."""
        if self.channel.closed:
            virtual.QoS.ack(self, delivery_tag)
        else:
            super().reject(delivery_tag, requeue=requeue)


class PubSub(redis.client.PubSub):
    """The connection for remote control, read without ever waiting or connecting again behind kombu's back."""

    def parse_response(self, block: bool = True, timeout: float = 0) -> Any:
        """Return the next message that has arrived, None when there is none.

        Raises redis-py's ConnectionError when the connection is gone; Celery then makes all its connections again,
        and registers them with its event loop, which redis-py cannot do.
        """
        connection: Any = self.connection
        if connection is None or not connection.is_connected:
            raise redis.ConnectionError("the connection for remote control is gone")
        if not connection.can_read(timeout=0):
            return None
        response = connection.read_response(push_request=True)
        if self.is_health_check_response(response):
            self.health_check_response_counter -= 1
            return None
        return response


class Channel(kombu_redis.Channel):  # type: ignore[misc]
    """A Redis channel with the tolerant bookkeeping, and a listener that never waits."""

    QoS = QoS

    @cached_property  # type: ignore[untyped-decorator]
    def subclient(self) -> PubSub:
        """The pub/sub connection of this channel, made at first use."""
        return PubSub(self._create_client(asynchronous=True).connection_pool)


class Transport(kombu_redis.Transport):  # type: ignore[misc]
    """The transport behind the `planqredis` URL schemes."""

    Channel = Channel


def hardened(broker_url: str) -> str:
    """Return the broker URL that selects this transport; URLs of other brokers come back as they are.

    Registers the schemes with kombu, which has no other way to name a transport in a URL.
    """
    scheme, separator, rest = broker_url.partition("://")
    if scheme not in _SCHEMES:
        return broker_url
    TRANSPORT_ALIASES.update(dict.fromkeys(("planqredis", "planqrediss"), f"{__name__}:Transport"))
    return f"{_SCHEMES[scheme]}{separator}{rest}"
