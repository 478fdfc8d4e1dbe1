"""A cancelled job's running work ends within a second, and nothing else does."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import psutil

from tests.integration.lease.conftest import Scene
from tests.support.living import is_alive
from tests.support.waiting import eventually

MakeScene = Callable[..., Scene]

NO_HEARTBEAT = {"PLANQ_HEARTBEAT_SECONDS": "60", "PLANQ_LEASE_SECONDS": "150"}
"""What ends work within a test's patience is the cancellation itself, then, not the next heartbeat's comparison."""


def is_gone(pid: int) -> bool:
    """A process that has ended and is still listed for its parent does nothing any more."""
    try:
        return not is_alive(psutil.Process(pid))
    except psutil.NoSuchProcess:
        return True


def test_a_cancelled_cpu_step_ends_with_its_process_and_no_other(make_scene: MakeScene) -> None:
    scene = make_scene(**NO_HEARTBEAT)
    kept = scene.submit(("test_crunch", {"seconds": 6}))
    scene.until_running(kept)
    job = scene.submit(("test_grind", {"path": str(scene.path)}))
    [pid] = scene.pids()

    assert scene.cancel(job) == 200
    eventually(lambda: is_gone(pid), 45, what="the process is gone")

    eventually(lambda: len(scene.children("cpu-1")) == 2, 60, what="the pool is full again")
    after = [scene.submit(("test_crunch", {"seconds": 0.01})) for _ in range(3)]
    assert {scene.ended(job_id)["status"] for job_id in after} == {"completed"}
    assert scene.ended(kept)["status"] == "completed"
    [step] = scene.ended(kept)["steps"]
    assert (step["attempt"], step["output"]["pid"] == pid) == (1, False)
    [cancelled] = scene.ended(job)["steps"]
    assert (cancelled["status"], cancelled["attempt"], cancelled["error"]) == ("cancelled", 1, None)


def test_a_cancel_whose_signal_was_lost_still_ends_the_work(make_scene: MakeScene) -> None:
    """Only the rows say it: the next heartbeats notice."""
    scene = make_scene()
    job = scene.submit(("test_grind", {"path": str(scene.path)}))
    held = scene.submit(("test_hold", {"seconds": 60}))
    [pid] = scene.pids()
    scene.until_running(held)

    for job_id in (job, held):
        scene.sql("SELECT planq_cancel_job(%s, 'default')", job_id)
    eventually(lambda: is_gone(pid), 45, what="the process is gone")
    flights = "SELECT sum(in_flight)::int AS n, sum(late_outcomes)::int AS late FROM workers"
    eventually(lambda: scene.sql(flights)[0]["n"] == 0, 45, what="nothing runs any more")
    assert scene.sql(flights)[0]["late"] == 0, "nothing was written"


class _Drip(BaseHTTPRequestHandler):
    """An answer that never ends, a byte at a time."""

    begun: threading.Event
    gone: threading.Event

    def do_GET(self) -> None:
        self.begun.set()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", "1000000")
        self.end_headers()
        try:
            while not self.gone.wait(0.02):
                self.wfile.write(b".")
                self.wfile.flush()
        except OSError:
            self.gone.set()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def test_a_cancelled_job_drops_its_open_http_stream_at_once(make_scene: MakeScene) -> None:
    open_, gone = threading.Event(), threading.Event()
    handler = type("Drip", (_Drip,), {"begun": open_, "gone": gone})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.01,))
        serving.start()
        scene = make_scene(PLANQ_HTTP_FETCH_ALLOW_HOSTS="127.0.0.1", **NO_HEARTBEAT)
        job = scene.submit(("http_fetch", {"url": f"http://127.0.0.1:{server.server_address[1]}/"}))
        assert open_.wait(60)

        assert scene.cancel(job) == 200
        assert gone.wait(45)
        server.shutdown()
        serving.join()
    assert scene.ended(job)["status"] == "cancelled"


def test_a_cancel_converges_before_the_first_wake_up_and_when_repeated(make_scene: MakeScene) -> None:
    scene = make_scene()
    scene.stack.kill("io-1")
    job = scene.submit(("test_hold", {"seconds": 0}))

    assert scene.cancel(job) == 200
    assert scene.cancel(job) in (200, 409)
    scene.stack.run_worker("io", 2)
    other = scene.submit(("test_hold", {"seconds": 0}))

    assert scene.ended(other)["status"] == "completed"
    assert scene.cancel(other) == 409
    assert scene.ended(job)["status"] == "cancelled"
    assert scene.sql("SELECT count(*)::int AS n FROM events WHERE kind = 'stage_started' AND job_id = %s", job) == [
        {"n": 0}
    ]


def test_a_thread_cannot_be_stopped_but_its_step_ends_at_once(make_scene: MakeScene) -> None:
    """A synchronous tool of the `io` pool runs in a thread: it is abandoned, its slot is free."""
    scene = make_scene()
    job = scene.submit(("test_block", {"path": str(scene.path), "seconds": 3600}))
    scene.pids()

    assert scene.cancel(job) == 200
    flights = "SELECT sum(in_flight)::int AS n FROM workers WHERE pools = '{io}'"
    eventually(lambda: scene.sql(flights)[0]["n"] == 0, 300, what="the worker has let go before the thread ended")
    assert scene.ended(job)["status"] == "cancelled"
