"""The failures of a broker, with RabbitMQ: connections closed, everything lost, a restart, silence."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import httpx
import psutil
import pytest

from tests.faults.conftest import Stage
from tests.faults.scene import PATIENCE
from tests.faults.striking import Struck, standing_at
from tests.support.proxy import TcpProxy
from tests.support.rabbitmq import RabbitMQ
from tests.support.waiting import eventually

pytestmark = pytest.mark.rabbitmq

PUBLISH = "publisher.publish:before"
FINISH = "store.succeed_step:before"

Strike = Callable[[RabbitMQ, str], None]


@pytest.fixture
def url(rabbitmq: RabbitMQ) -> Iterator[str]:
    made = rabbitmq.create()
    yield made
    rabbitmq.drop(made)


def name_of(url: str) -> str:
    return url.rsplit("/", 1)[1]


def disconnected(node: RabbitMQ, url: str) -> None:
    """Close every connection, as `rabbitmqctl close_all_connections` does; new ones come up a moment later."""
    there = f"{node.api}/vhosts/{name_of(url)}/connections"

    def known() -> set[str]:
        # The management plugin learns of connections, and of their end, every few seconds.
        told = {connection["name"] for connection in httpx.get(there).json()}
        return told if told >= _open_connections(node) else set()

    for name in eventually(known, PATIENCE, every=0.2, what="every open connection is known"):
        answer = httpx.delete(f"{node.api}/connections/{name}", headers={"X-Reason": "test"})
        assert answer.status_code == httpx.codes.NO_CONTENT or name not in _open_connections(node), answer.text


def _open_connections(node: RabbitMQ) -> set[str]:
    """Return the names that a node gives to the connections which are open according to the kernel."""
    pairs = [
        (one.laddr, one.raddr) for one in psutil.net_connections("tcp4") if one.status == psutil.CONN_ESTABLISHED
    ]
    return {f"127.0.0.1:{ours.port} -> 127.0.0.1:{node.port}" for ours, theirs in pairs if theirs.port == node.port}


def emptied(node: RabbitMQ, url: str) -> None:
    """Remove the virtual host with its queues and messages, and make it again."""
    node.drop(url)
    httpx.put(f"{node.api}/vhosts/{name_of(url)}").raise_for_status()


def restarted(node: RabbitMQ, url: str) -> None:
    """Stop the whole node and start it again."""
    node.stop()
    node.start()


@pytest.mark.parametrize("point", [PUBLISH, FINISH])
@pytest.mark.parametrize("strike", [disconnected, emptied, restarted], ids=lambda strike: strike.__name__)
def test_the_job_and_the_next_one_come_out_right(
    rabbitmq: RabbitMQ, url: str, stage: Stage, strike: Strike, point: str
) -> None:
    with stage(broker_url=url) as scene:
        struck = standing_at(scene, point)
        strike(rabbitmq, url)
        struck.go_on()
        struck.comes_out_right()


def test_a_worker_whose_connections_are_half_open_holds_nobody_up(rabbitmq: RabbitMQ, url: str, stage: Stage) -> None:
    with TcpProxy(("127.0.0.1", rabbitmq.port)) as proxy, stage(broker_url=url) as scene:
        struck: Struck = standing_at(scene, PUBLISH, BROKER_URL=url.replace(str(rabbitmq.port), str(proxy.port)))
        assert proxy.freeze() >= 1, "there were connections to freeze"
        struck.go_on()
        other = scene.worker()
        scene.mixed_comes_out_right(struck.job_id)
        # The network is back, and with it the news that the old connections are gone.
        proxy.reset_frozen()
        scene.stack.kill(other)
        struck.comes_out_right()
