"""API processes are killed at every event of a job; its client goes on at another one and has seen the log, once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from uuid import UUID

import httpx

from planq.shared.client import Client
from planq.shared.platform.errors import Unavailable
from tests.faults.conftest import Stage
from tests.faults.scene import PATIENCE, Scene
from tests.support.ports import free_port
from tests.support.sse import Frame, frames
from tests.support.waiting import eventually

HOLDS = 3


class Apis:
    """Two API processes, of which one is killed and comes back while the other is asked."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self.ports = {"first": free_port(), "second": free_port()}
        for name in self.ports:
            self.start(name)

    def start(self, name: str) -> None:
        self._scene.stack.run(name, "-m", "planq.api", env={"PLANQ_PORT": str(self.ports[name])})

    def kill(self, name: str) -> None:
        self._scene.stack.kill(name)

    def next_frame(self, name: str, job_id: UUID, after: str | None) -> Frame:
        """Read one frame that is an event or the ended job, as soon as the process answers."""
        url = f"http://127.0.0.1:{self.ports[name]}/jobs/{job_id}/events"
        given = {} if after is None else {"Last-Event-ID": after}

        def read() -> Frame | None:
            try:
                with httpx.stream("GET", url, headers=given, timeout=60, trust_env=False) as response:
                    assert response.status_code in (200, 204), response.read()
                    return next(frames(response.iter_bytes()), Frame(None, "over", None))
            except httpx.TransportError:
                return None

        frame = eventually(read, PATIENCE, every=0.05, what=f"{name} answers")
        assert frame is not None
        return frame


def rest(_: float) -> None:
    """Wait less long than people's commands do."""
    threading.Event().wait(0.05)


def release(folder: Path, frame: Frame) -> None:
    """Let a step go on once its client has seen that it has begun."""
    if frame.event == "step_started":
        (folder / f"go-{frame.data['data']['index']}").touch()


def test_the_union_of_what_a_client_saw_is_the_log_whatever_api_process_dies(stage: Stage) -> None:
    with stage() as scene, ThreadPoolExecutor() as pool, ExitStack() as open_clients:
        apis = Apis(scene)
        scene.worker()
        job_id = scene.submit(*[("fault_hold", {"until": f"go-{n}"}) for n in range(HOLDS)])
        # Beside: planq's own client, on the process that dies every other time.
        patient = open_clients.enter_context(Client(f"http://127.0.0.1:{apis.ports['first']}", pause=rest))
        eventually(lambda: _answers(patient), PATIENCE, what="the API answers")
        beside = pool.submit(lambda: list(patient.stream(str(job_id))))

        seen: list[Frame] = []
        names = ["first", "second"]
        while not seen or seen[-1].event != "over":
            name = names[len(seen) % 2]
            frame = apis.next_frame(name, job_id, seen[-1].id if seen else None)
            if frame.event == "job":  # no event: it is told so once more, and the stream is over for good
                assert frame.data["status"] == "completed"
                frame = apis.next_frame(name, job_id, seen[-1].id)
            seen.append(frame)
            release(scene.folder, frame)
            apis.kill(name)
            apis.start(name)

        log = scene.read(
            "SELECT xid::text || '-' || sequence AS id, kind FROM events WHERE job_id = %s ORDER BY xid, sequence",
            job_id,
        )
        whole = [(row["id"], row["kind"]) for row in log]
        assert len(whole) >= 2 * HOLDS + 4
        assert [(frame.id, frame.event) for frame in seen[:-1]] == whole
        told = beside.result(PATIENCE)
        assert [(event.id, event.kind) for event in told if event.id] == whole
        assert (told[-1].kind, told[-1].data["status"]) == ("job", "completed")


def _answers(client: Client) -> bool:
    try:
        client.jobs(1)
    except Unavailable:
        return False
    return True
