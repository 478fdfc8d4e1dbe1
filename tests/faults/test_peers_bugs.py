"""Bugs that peers had, brought here by name: each test does to planq what broke them, and says why it does not break.

The list is that of the project's survey of its field: DBOS Transact (Python), Celery, Hatchet, OpenAI's background
responses.
"""

from __future__ import annotations

import json
import shutil
import signal
import socket
import struct
from concurrent.futures import Future
from datetime import timedelta
from uuid import UUID

import httpx
import pytest
from celery import Celery

from planq.shared.broker import names
from planq.shared.broker.celery_config import create_celery
from tests.faults.conftest import Play, Stage, as_play
from tests.faults.scene import PATIENCE, SHORT_LEASE, SHORT_LEASE_SECONDS, Scene
from tests.faults.striking import crash, own_postgres, own_valkey
from tests.support.proxy import TcpProxy
from tests.support.waiting import eventually

HOLD = ("fault_hold", {"until": "go"})


def worker_ids(scene: Scene) -> set[UUID]:
    return {row["id"] for row in scene.read("SELECT id FROM workers")}


def go(scene: Scene) -> None:
    """Let every held tool end."""
    (scene.folder / "go").touch()


def dbos_716_the_database_restarts_in_the_middle_of_a_recovery(stage: Stage) -> None:
    """dbos-transact-py #716: a passing database error inside the one recovery pass dropped workflows for ever.

    Here recovery is a loop over what the database says: what one pass could not put right the next one finds again.
    """
    with own_postgres() as (postgres, url), stage(database_url=url) as scene:
        jobs = [scene.submit(HOLD) for _ in range(5)]
        first = scene.worker()
        for job_id in jobs:
            scene.runs(job_id)
        scene.stack.kill(first)
        _, folder = scene.held("sweep.take_back_step:before@2")
        eventually((folder / "held").exists, PATIENCE, what="the recovery is half-way")
        crash(postgres)
        (folder / "go").touch()
        go(scene)
        postgres.start()
        for job_id in jobs:
            scene.completes(job_id, "attempt 2")
        scene.sound()


def dbos_742_a_stale_list_of_what_to_recover_moves_nothing(stage: Stage) -> None:
    """dbos-transact-py #742: who had read that a workflow was pending ran it, although another had recovered it.

    Here the list only proposes: taking back names the attempt that was lost, and after another has taken it back the
    attempt is a different one.
    """
    with stage(env=SHORT_LEASE) as scene:
        job_id = scene.submit(HOLD)
        first = scene.worker()
        scene.runs(job_id)
        scene.stack.kill(first)
        eventually(lambda: scene.live() == 0, PATIENCE, what="its lease has ended")
        _, folder = scene.held("sweep.lost_steps:after")
        eventually((folder / "held").exists, PATIENCE, what="one worker has read the list")
        scene.worker()
        eventually(lambda: scene.ran()[f"{job_id}/0"] == 2, PATIENCE, what="another one has taken the step back")
        (folder / "go").touch()
        go(scene)
        scene.completes(job_id, "attempt 2")
        assert scene.ran()[f"{job_id}/0"] == 2
        scene.sound()


def dbos_804_a_worker_that_drains_takes_nothing_and_its_work_goes_to_others(stage: Stage) -> None:
    """dbos-transact-py #804: a draining executor claimed again what a new one had just recovered, and then exited.

    Here a worker that was told to stop reads no more messages and begins no follow-up; every process has an id of its
    own, and what it gives back at the end of its drain is claimed by somebody else.
    """
    with stage(env={"PLANQ_DRAIN_SECONDS": "4"}) as scene:
        held = scene.submit(HOLD, ("fault_note", {"text": "$0.output.text"}))
        draining = scene.worker()
        scene.runs(held)
        old = worker_ids(scene)
        scene.signal(draining, signal.SIGTERM)
        scene.worker()
        eventually(lambda: worker_ids(scene) - old, PATIENCE, what="the new worker is there")
        fresh = [scene.submit(("fault_note", {"text": "a"})) for _ in range(5)]
        for job_id in fresh:
            assert scene.completes(job_id, "<a>")[0]["worker_id"] not in old
        scene.dies(draining, 0)
        scene.runs(held)
        go(scene)
        steps = scene.completes(held, "attempt 2", "<attempt 2>")
        assert not {step["worker_id"] for step in steps} & old
        assert [step["worker_losses"] for step in steps] == [0, 0]
        scene.sound()


def dbos_805_a_recovered_job_goes_on_between_two_of_its_steps(scene: Scene) -> None:
    """dbos-transact-py #805: recovered between two finished steps and the next one, a workflow stayed pending and
    blocked a queue of concurrency 1.

    Here the finish of a step makes the next one ready in the same commit, with a time at which somebody looks again.
    """
    chain = [("fault_look", {"text": "a"}), *[("fault_look", {"text": f"${n}.output.text"}) for n in range(3)]]
    job_id = scene.submit(*chain)
    later = scene.submit(("fault_note", {"text": "b"}))
    scene.dies(scene.doomed("store.succeed_step:after@2", concurrency=1))
    scene.worker(concurrency=1)
    steps = scene.completes(job_id, "<<<<a>>>>")
    assert sum(step["attempt"] for step in steps) <= 5, "only what was under way ran again"
    scene.completes(later, "<b>")
    scene.sound()


def dbos_546_a_message_that_cannot_be_carried_out_holds_up_nothing_behind_it(scene: Scene) -> None:
    """dbos-transact-py #546: one dequeued workflow whose dispatch raised left all others of its batch pending.

    Here each message is carried out for itself; what cannot be decoded ends its own Celery task and nothing else.
    """
    app: Celery = create_celery(scene.broker_url)
    bad: list[tuple[str, dict[str, object]]] = [
        (names.PLAN, {"job": "no uuid"}),
        (names.PLAN, {}),
        (names.STEP, {"job": 7, "round": "x", "step": None, "pool": "air", "tool": []}),
        (names.RESPOND, {"job": ["list"], "more": 1}),
    ]
    for name, arguments in bad:
        app.send_task(name, kwargs=arguments, queue="planq.io")
    missing = scene.submit(("no_such_tool", {}))
    good = [scene.submit(("fault_note", {"text": str(n)})) for n in range(3)]
    for name, arguments in bad:
        app.send_task(name, kwargs=arguments, queue="planq.io")
    app.close()
    scene.worker()
    for number, job_id in enumerate(good):
        scene.completes(job_id, f"<{number}>")
    assert scene.ends(missing)[0]["status"] == "completed"
    scene.sound()


def celery_3363_a_join_misses_no_part_when_the_broker_times_out(stage: Stage) -> None:
    """celery/celery #3363: a part of a chord that met a Redis time-out was never counted, so the body never ran.

    Here the join is a counter in the database, moved in the commit that finishes a part; the broker carries wake-ups
    only, and those that it lost are published again.
    """
    with own_valkey() as valkey, TcpProxy(valkey.socket_path) as proxy, stage(broker_url=valkey.url) as scene:
        parts = [(("fault_note", {"text": str(n)})) for n in range(20)]
        join = ("fault_join", {"parts": [f"${n}.output.text" for n in range(20)]})
        job_id = scene.submit(*parts, join)
        _, folder = scene.held("publisher.publish:before", BROKER_URL=f"redis://127.0.0.1:{proxy.port}/0")
        eventually((folder / "held").exists, PATIENCE, what="the fan-out is about to be published")
        proxy.freeze()
        (folder / "go").touch()
        scene.completes(job_id, "+".join(f"<{n}>" for n in range(20)))
        assert scene.ran()[f"{job_id}/20"] == 1
        scene.sound()


def celery_8030_a_worker_hears_again_after_each_restart_of_the_broker(stage: Stage) -> None:
    """celery/celery #8030, #8091, #8384: after a reconnect to Redis a worker went on without consuming.

    Here the fixed releases of Celery and kombu are used with a transport that survives the loss, and every restart,
    with an empty store too, is followed by a job that must be heard.
    """
    with own_valkey() as valkey, stage(broker_url=valkey.url) as scene:
        scene.worker()
        for number in range(3):
            scene.completes(scene.submit(("fault_note", {"text": str(number)})), f"<{number}>")
            valkey.stop()
            shutil.rmtree(valkey.log.parent / "data")
            valkey.start()
        scene.completes(scene.submit(("fault_note", {"text": "last"})), "<last>")
        scene.sound()


def hatchet_1796_a_worker_that_beats_and_takes_nothing_ends_itself(stage: Stage) -> None:
    """hatchet #1796, hatchet-rust-sdk PR #48: a worker's listener had ended, its heartbeat had not: it looked alive,
    and was given work that nobody did.

    Here nobody is given work, so others take it; and a worker that stands idle while its pool is woken in vain ends,
    so that its supervisor starts it again.
    """
    env = {"PLANQ_CONSUMER_WATCHDOG_SECONDS": "2", "PLANQ_REMOTE_CONTROL": "cancel_consumer"}
    with stage(env=env) as scene:
        deaf = scene.worker()
        scene.completes(scene.submit(("fault_note", {"text": "a"})), "<a>")
        app = create_celery(scene.broker_url)
        answers = app.control.cancel_consumer("planq.io", reply=True, timeout=10, limit=1)
        app.close()
        assert len(answers) == 1
        unheard = scene.submit(("fault_note", {"text": "b"}))
        scene.dies(deaf, 75)
        scene.worker()
        scene.completes(unheard, "<b>")
        scene.sound()


def hatchet_1022_the_late_result_of_an_expired_attempt_is_rejected(stage: Stage) -> None:
    """hatchet #1022: a worker that had been given up came back with its result, and the work was counted twice.

    Here an outcome carries the number of its attempt, and the database takes it from no other than the present one.
    """
    with stage(env=SHORT_LEASE) as scene:
        job_id = scene.submit(HOLD)
        slow = scene.worker()
        scene.runs(job_id)
        scene.signal(slow, signal.SIGSTOP)
        scene.worker()
        eventually(lambda: scene.ran()[f"{job_id}/0"] == 2, PATIENCE, what="another worker has taken the step over")
        go(scene)
        scene.completes(job_id, "attempt 2")
        scene.signal(slow, signal.SIGCONT)
        eventually(lambda: scene.live() == 2, PATIENCE, what="the slow worker is back")
        again = scene.submit(("fault_note", {"text": "a"}))
        scene.completes(again, "<a>")
        assert [row["data"]["attempt"] for row in scene.told(job_id, "step_succeeded")] == [2]
        scene.sound()


def hatchet_1696_a_blocked_event_loop_loses_no_lease(stage: Stage) -> None:
    """hatchet #1665, #1696: a tool that blocked the event loop stopped the heartbeats, and its work was given away.

    Here the lease is renewed by a thread with a loop of its own.
    """
    with stage(env=SHORT_LEASE) as scene:
        job_id = scene.submit(("fault_block", {"until": "go"}))
        scene.worker()
        scene.runs(job_id)
        scene.worker()
        eventually(lambda: scene.live() == 2, PATIENCE, what="a second worker, which could take the step, is there")
        begun = scene.now()
        two_leases = timedelta(seconds=2 * SHORT_LEASE_SECONDS)
        eventually(lambda: scene.now() - begun > two_leases, 60, what="two leases have passed")
        go(scene)
        scene.completes(job_id, "attempt 1")
        scene.sound()


def openai_1382584_a_client_that_leaves_at_once_has_its_job_run(scene: Scene) -> None:
    """OpenAI community 1382584: background responses whose client disconnected at once stayed `queued` for ever.

    Here the job is committed before the first byte of the answer, and its run depends on nobody who waits.
    """
    scene.worker()
    eventually(lambda: scene.read("SELECT 1 FROM tools"), PATIENCE, what="the worker has published its tools")
    scene.api()
    body = json.dumps({"plan": {"calls": [{"tool_name": "fault_note", "arguments": {"text": "a"}}]}}).encode()
    for number in range(6):
        head = (
            f"POST /jobs HTTP/1.1\r\nHost: 127.0.0.1:{scene.stack.port}\r\nContent-Type: application/json\r\n"
            f"Idempotency-Key: key-{number}\r\nContent-Length: {len(body)}\r\n\r\n"
        ).encode()
        with socket.create_connection(("127.0.0.1", scene.stack.port), timeout=60) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.sendall(head + body)
            if number % 2:
                assert client.recv(1) == b"H", "the first byte of the answer"
    promised = scene.read("SELECT id FROM jobs WHERE idempotency_key IN ('key-1', 'key-3', 'key-5')")
    assert len(promised) == 3
    for number in range(6):
        headers = {"Idempotency-Key": f"key-{number}", "Content-Type": "application/json"}
        answer = httpx.post(f"{scene.stack.url}/jobs", content=body, headers=headers, timeout=60)
        assert answer.status_code == httpx.codes.ACCEPTED, answer.text
    rows = scene.read("SELECT id FROM jobs")
    assert len(rows) == 6
    for row in rows:
        scene.completes(row["id"], "<a>")
    scene.sound()


BUGS = (
    dbos_716_the_database_restarts_in_the_middle_of_a_recovery,
    dbos_742_a_stale_list_of_what_to_recover_moves_nothing,
    dbos_804_a_worker_that_drains_takes_nothing_and_its_work_goes_to_others,
    dbos_805_a_recovered_job_goes_on_between_two_of_its_steps,
    dbos_546_a_message_that_cannot_be_carried_out_holds_up_nothing_behind_it,
    celery_3363_a_join_misses_no_part_when_the_broker_times_out,
    celery_8030_a_worker_hears_again_after_each_restart_of_the_broker,
    hatchet_1796_a_worker_that_beats_and_takes_nothing_ends_itself,
    hatchet_1022_the_late_result_of_an_expired_attempt_is_rejected,
    hatchet_1696_a_blocked_event_loop_loses_no_lease,
    openai_1382584_a_client_that_leaves_at_once_has_its_job_run,
)
ELSEWHERE = (
    dbos_716_the_database_restarts_in_the_middle_of_a_recovery,
    dbos_805_a_recovered_job_goes_on_between_two_of_its_steps,
    celery_8030_a_worker_hears_again_after_each_restart_of_the_broker,
    hatchet_1022_the_late_result_of_an_expired_attempt_is_rejected,
)
"""What the matrix of faults, the crash points and the tests of the guards show too."""


@pytest.mark.parametrize("play", [as_play(play, is_rare=play in ELSEWHERE) for play in BUGS])
def test_what_broke_a_peer_does_not_break_this(play: tuple[str, Play], plays: dict[str, Future[None]]) -> None:
    plays[play[0]].result()
