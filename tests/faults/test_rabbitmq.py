"""The failures of a broker, with RabbitMQ: connections closed, everything lost, a restart, silence."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import psutil
import pytest
from kombu import Connection

from planq.shared.broker import names
from planq.shared.kernel.states import WakeQueue
from tests.faults.conftest import Stage, under_way
from tests.faults.scene import PATIENCE, SHORT_LEASE
from tests.faults.striking import Struck, standing_at
from tests.support.proxy import TcpProxy
from tests.support.rabbitmq import RabbitMQ
from tests.support.tiers import some_plays
from tests.support.waiting import eventually

pytestmark = pytest.mark.rabbitmq

PUBLISH = "publisher.publish:before"
FINISH = "store.succeed_step:before"

Strike = Callable[[RabbitMQ, str, Struck], None]
Play = Callable[[Stage, RabbitMQ], None]


@pytest.fixture(scope="module")
def plays(request: pytest.FixtureRequest, stage: Stage, rabbitmq: RabbitMQ) -> Iterator[dict[str, Future[None]]]:
    """As in `conftest.py`; a play gets the session's node too, where others play on other virtual hosts."""
    with under_way(request, stage, rabbitmq) as futures:
        yield futures


@contextmanager
def own_host(node: RabbitMQ) -> Iterator[str]:
    """The broker URL of a virtual host of the play's own."""
    url = node.create()
    yield url
    node.drop(url)


def name_of(url: str) -> str:
    return url.rsplit("/", 1)[1]


def disconnected(node: RabbitMQ, url: str, struck: Struck) -> None:
    """Close every connection, as `rabbitmqctl close_all_connections` does; new ones come up a moment later."""
    there = f"{node.api}/vhosts/{name_of(url)}/connections"
    pids = [process.pid for process in struck.scene.stack.processes.values()]

    def known() -> set[str]:
        # The management plugin learns of connections, and of their end, a moment later.
        told = {connection["name"] for connection in httpx.get(there).json()}
        ours = _open_connections(node, pids)
        return told if ours and told >= ours else set()

    for name in eventually(known, PATIENCE, every=0.2, what="every open connection is known"):
        answer = httpx.delete(f"{node.api}/connections/{name}", headers={"X-Reason": "test"})
        assert answer.status_code == httpx.codes.NO_CONTENT or name not in _open_connections(node, pids), answer.text


def _open_connections(node: RabbitMQ, pids: Collection[int]) -> set[str]:
    """Return the names that a node gives to the connections of processes which are open according to the kernel."""
    pairs = [
        (one.laddr, one.raddr)
        for one in psutil.net_connections("tcp4")
        if one.status == psutil.CONN_ESTABLISHED and one.pid in pids
    ]
    return {f"127.0.0.1:{ours.port} -> 127.0.0.1:{node.port}" for ours, theirs in pairs if theirs.port == node.port}


def emptied(node: RabbitMQ, url: str, struck: Struck) -> None:
    """Remove the virtual host with its queues and messages, and make it again."""
    node.drop(url)
    httpx.put(f"{node.api}/vhosts/{name_of(url)}").raise_for_status()


def struck_at(point: str, strike: Strike, stage: Stage, node: RabbitMQ) -> None:
    """The job and the next one come out right.

    With a short lease: a job whose queue was removed in FINISH went on after twice the lease (2026-11).
    """
    with own_host(node) as url, stage(broker_url=url, env=SHORT_LEASE) as scene:
        struck = standing_at(scene, point)
        strike(node, url, struck)
        struck.go_on()
        struck.comes_out_right()


def emptied_under_way(stage: Stage, node: RabbitMQ) -> None:
    """A worker that has a lot in hand when its queue goes takes on as much as before, and hears every wake-up.

    Until then it is asked for a wider prefetch window with each acknowledgement; that was once done from the thread
    of the pool, which then read frames of the consumer's, or waited for ever (2026-11).
    """
    with own_host(node) as url, stage(broker_url=url, env=SHORT_LEASE) as scene:
        name = scene.worker()
        held = [scene.submit(("fault_hold", {"until": "go"})) for _ in range(20)]
        scene.eventually_running("fault_hold", len(held))
        emptied(node, url, Struck(scene, held[0], name, scene.folder))
        (scene.folder / "go").touch()
        for job_id in [*held, *[scene.submit(("fault_note", {"text": "a"})) for _ in range(60)]]:
            scene.ends(job_id)
        log = scene.stack.log(name).read_text("utf-8")
        assert "UnexpectedFrame" not in log, log
        assert "pool_callback_failed" not in log, log


def crowded(stage: Stage, node: RabbitMQ) -> None:
    """A worker with four slots leaves with the broker what it has no slot for.

    The window of its bulk queue once lifted the one of all its queues: it took whatever waited (2026-11).
    """
    slots, jobs = 4, 200
    with own_host(node) as url, stage(broker_url=url) as scene:
        job_ids = [scene.submit(("fault_hold", {"until": "go"})) for _ in range(jobs)]
        scene.worker(concurrency=slots)
        scene.eventually_running("fault_hold", slots)
        with Connection(url) as connection:
            queue = connection.default_channel.queue_declare(names.queue(WakeQueue("io")), passive=True)
        assert queue.message_count >= jobs - 2 * slots
        (scene.folder / "go").touch()
        for job_id in job_ids:
            scene.ends(job_id)


def restarted(stage: Stage, _: RabbitMQ) -> None:
    """Stop a whole node and start it again, while one worker is about to publish and another one to finish."""
    with TemporaryDirectory(prefix="planq-rabbitmq-") as folder:
        node = RabbitMQ(Path(folder))
        node.start()
        try:
            with stage(broker_url=node.create()) as publishing, stage(broker_url=node.create()) as finishing:
                both = [standing_at(publishing, PUBLISH), standing_at(finishing, FINISH)]
                node.stop()
                node.start()
                for struck in both:
                    struck.go_on()
                for struck in both:
                    struck.comes_out_right()
        finally:
            node.end()


def half_open(stage: Stage, node: RabbitMQ) -> None:
    """A worker whose connections are half-open holds nobody up."""
    with (
        TcpProxy(("127.0.0.1", node.port)) as proxy,
        own_host(node) as url,
        stage(broker_url=url) as scene,
    ):
        struck = standing_at(scene, PUBLISH, BROKER_URL=url.replace(str(node.port), str(proxy.port)))
        assert proxy.freeze() >= 1, "there were connections to freeze"
        struck.go_on()
        other = scene.worker()
        scene.mixed_comes_out_right(struck.job_id)
        # The network is back, and with it the news that the old connections are gone.
        proxy.reset_frozen()
        scene.stack.kill(other)
        struck.comes_out_right()


PLAYS: dict[str, Play] = {
    "restarted": restarted,
    **{
        f"{strike.__name__} in {operation}": partial(struck_at, point, strike)
        for strike in (disconnected, emptied)
        for operation, point in (("publish", PUBLISH), ("finish", FINISH))
    },
    "emptied under way": emptied_under_way,
    "crowded": crowded,
    "half-open in publish": half_open,
}
RARE = ("disconnected in finish", "emptied in publish", "emptied in finish")
"""A restart, and an empty queue under way, are the same from there on."""


@pytest.mark.parametrize("play", some_plays(PLAYS, RARE))
def test_the_job_and_the_next_one_come_out_right(play: tuple[str, Play], plays: dict[str, Future[None]]) -> None:
    plays[play[0]].result()
