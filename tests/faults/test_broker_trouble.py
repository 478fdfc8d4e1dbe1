"""A broker that answers with errors, holds what is no wake-up, or comes back with a torn file: no job suffers."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

import httpx
import pytest
import redis

from planq.deploy.local.valkey import EmbeddedValkey
from planq.shared.broker import names
from planq.shared.broker.celery_config import create_celery
from planq.shared.broker.dead_letters import DeadLetter, DeadLetters
from planq.shared.kernel.states import OWN_QUEUES, WakeQueue
from tests.faults.conftest import Play, Stage, as_play
from tests.faults.scene import MIXED, PATIENCE, Scene
from tests.faults.striking import own_valkey
from tests.support.poison import poison_rabbitmq, poison_redis
from tests.support.rabbitmq import RabbitMQ
from tests.support.refusing import REFUSALS, Refusal
from tests.support.torn import FATAL
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(300)

DEAR = [("fault_pay", {"text": "a", "until": "go"}), ("fault_note", {"text": "$0.output.text"})]
LONG = [("fault_crunch", {"until": "go"}), ("fault_note", {"text": "$0.output.text"})]


STEADY = {"PLANQ_LEASE_SECONDS": "60"}
"""No lease ends here for want of processor time: what a broker does to the work is the point."""


def wire(valkey: EmbeddedValkey) -> redis.Redis:
    return redis.Redis(unix_socket_path=str(valkey.socket_path))


def both_pools(scene: Scene) -> tuple[str, str]:
    """Start a worker of each pool."""
    return scene.worker(), scene.worker("cpu", concurrency=2)


def nobody_died(scene: Scene, workers: tuple[str, str]) -> None:
    assert [scene.stack.processes[name].poll() for name in workers] == [None, None]


def broker_check(scene: Scene) -> tuple[bool, str]:
    found = httpx.get(f"{scene.stack.url}/statusz", timeout=10).json()["checks"]["broker"]
    return found["ok"], found["detail"]


def refused(refusal: Refusal, stage: Stage) -> None:
    """Both pools go on with what they run, an `unsafe` call too, and take new work once the broker is well."""
    with own_valkey() as valkey, stage(broker_url=valkey.url, env=STEADY) as scene, wire(valkey) as client:
        workers = both_pools(scene)
        scene.api()
        dear, long = scene.submit(*DEAR), scene.submit(*LONG)
        for job_id in (dear, long):
            scene.runs(job_id)
        refusal.begin(client, valkey.log.parent / "data")
        eventually(
            lambda: not (found := broker_check(scene))[0] and refusal.code in found[1],
            PATIENCE,
            every=0.2,
            what=f"/statusz names {refusal.code}",
        )
        meanwhile = scene.submit(*MIXED)
        logs = [scene.stack.log(name) for name in (workers if refusal.ends_reading else ())]
        for log in logs:
            eventually(lambda log=log: refusal.code in log.read_text(), PATIENCE, what=f"{log} names the reply")
        nobody_died(scene, workers)
        (scene.folder / "go").touch()
        refusal.end(client, valkey.log.parent / "data")
        scene.completes(dear, "<<a>>")
        scene.completes(long, "<attempt 1>")
        scene.ends(meanwhile)
        scene.mixed_comes_out_right(meanwhile)
        eventually(lambda: broker_check(scene)[0], PATIENCE, every=0.2, what="/statusz is well again")
        nobody_died(scene, workers)
        scene.sound()


def a_worker_starts_while_the_broker_refuses(stage: Stage) -> None:
    """It waits, as for a broker that is away."""
    refusal = REFUSALS["MISCONF"]
    with own_valkey() as valkey, stage(broker_url=valkey.url, env=STEADY) as scene, wire(valkey) as client:
        refusal.begin(client, valkey.log.parent / "data")
        job_id = scene.submit(*MIXED)
        workers = both_pools(scene)
        for name in workers:
            log = scene.stack.log(name)
            eventually(lambda log=log: "MISCONF" in log.read_text(), PATIENCE, what=f"{name} names the reply")
        refusal.end(client, valkey.log.parent / "data")
        scene.ends(job_id)
        scene.mixed_comes_out_right(job_id)
        nobody_died(scene, workers)


def poisoned(stage: Stage, broker_url: str, poison: Callable[[WakeQueue], list[str]]) -> None:
    """What is no wake-up is kept with its reason, and both pools go on with what they run."""
    with stage(broker_url=broker_url, env=STEADY) as scene:
        workers = both_pools(scene)
        dear, long = scene.submit(*DEAR), scene.submit(*LONG)
        for job_id in (dear, long):
            scene.runs(job_id)
        kinds = [kind for queue in OWN_QUEUES for kind in poison(queue)]
        dead_letters = DeadLetters(create_celery(broker_url))

        def all_are_kept() -> list[DeadLetter]:
            kept = dead_letters.list(1_000)
            assert len(kept) == len(kinds)
            return kept

        kept = eventually(all_are_kept, PATIENCE, every=0.2, what="every poisoned message is a dead letter")
        assert all(letter.reason and letter.at for letter in kept)
        meanwhile = scene.submit(*MIXED)
        scene.ends(meanwhile)
        scene.mixed_comes_out_right(meanwhile)
        nobody_died(scene, workers)
        (scene.folder / "go").touch()
        scene.completes(dear, "<<a>>")
        scene.completes(long, "<attempt 1>")
        counted = (
            "SELECT sum((c->>1)::int) AS n FROM workers, json_array_elements(counts) c WHERE c->>0 = 'dead_letter'"
        )
        eventually(lambda: scene.read(counted)[0]["n"] == len(kinds), PATIENCE, what="the workers told their counts")
        assert len(all_are_kept()) == len(kinds), "to look at them moves nothing"
        assert dead_letters.drop() == len(kinds)
        assert dead_letters.count() == 0
        dead_letters.close()
        scene.sound()


def a_poisoned_redis(stage: Stage) -> None:
    with own_valkey() as valkey, wire(valkey) as client:
        poisoned(stage, valkey.url, partial(poison_redis, client))


def garbage_for_remote_control(stage: Stage) -> None:
    """What is broadcast to all workers and is no message is let go."""
    with own_valkey() as valkey, stage(broker_url=valkey.url, env=STEADY) as scene, wire(valkey) as client:
        workers = both_pools(scene)
        eventually(lambda: client.pubsub_numpat() >= 1, PATIENCE, what="somebody listens")
        done = scene.submit(*MIXED)
        scene.ends(done)
        for text in (b"x", b"[]", b"null", b"{}", b"1", b"\xff", b"[" * 100_000, b'{"properties": {}}'):
            assert client.publish(f"/0.{names.PREFIX}.pidbox", text) >= 1
        again = scene.submit(*MIXED)
        scene.ends(again)
        scene.mixed_comes_out_right(again)
        nobody_died(scene, workers)


def a_torn_file_costs_no_job(stage: Stage) -> None:
    """The machine lost power while wake-ups waited: none of them is left, and all of the jobs come out right."""
    with own_valkey() as valkey, stage(broker_url=valkey.url) as scene:
        jobs = [scene.submit(*MIXED) for _ in range(5)]
        with wire(valkey) as client:
            queue = names.queue(WakeQueue("io"))
            eventually(lambda: client.llen(queue) == len(jobs), PATIENCE, what="all are published")
        valkey.stop()
        FATAL["a block of zero bytes at the end"](valkey.log.parent / "data")
        valkey.start()
        assert valkey.aside.exists()
        scene.worker()
        for job_id in jobs:
            scene.ends(job_id)
            scene.mixed_comes_out_right(job_id)
        scene.sound()


OFTEN = ("MISCONF", "OOM")
"""One that ends all writing, and one that leaves reading as it is."""

PLAYS = [
    *[
        pytest.param((code, partial(refused, refusal)), id=code, marks=[] if code in OFTEN else [pytest.mark.whole])
        for code, refusal in REFUSALS.items()
    ],
    *map(
        as_play,
        [
            a_worker_starts_while_the_broker_refuses,
            a_poisoned_redis,
            garbage_for_remote_control,
            a_torn_file_costs_no_job,
        ],
    ),
]


@pytest.mark.parametrize("play", PLAYS)
def test_the_broker_is_in_trouble_and_no_job_is(play: tuple[str, Play], plays: dict[str, Future[None]]) -> None:
    plays[play[0]].result()


@pytest.mark.rabbitmq
@pytest.mark.whole
def test_poison_on_rabbitmq_is_kept_too(stage: Stage, rabbitmq: RabbitMQ) -> None:
    url = rabbitmq.create()
    try:
        poisoned(stage, url, partial(poison_rabbitmq, url))
    finally:
        rabbitmq.drop(url)
