"""A batch from its upload to its results, while the API, a worker and the broker are killed, one after the other."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Iterator
from concurrent.futures import Future

import httpx
import pytest

from tests.faults.batching import batch_ends
from tests.faults.conftest import Play, Stage, as_play
from tests.faults.scene import PATIENCE, Scene
from tests.support.waiting import eventually

LINES = 120
SENT = {"Content-Type": "application/jsonl", "Idempotency-Key": "one-batch"}


def line(number: int) -> bytes:
    call = {"tool_name": "fault_note", "arguments": {"text": str(number)}}
    return json.dumps({"custom_id": f"line-{number}", "body": {"plan": {"calls": [call]}}}).encode() + b"\n"


def api_dies(scene: Scene) -> None:
    """Kill the API and start another one."""
    scene.stack.kill("api")
    scene.api()


def each_line_ends_once_whoever_is_killed(stage: Stage) -> None:
    with stage() as scene:
        worker = scene.worker()
        eventually(lambda: scene.read("SELECT 1 FROM tools"), PATIENCE, what="the worker has published its tools")
        scene.api()
        killed_in_its_upload(scene)
        file = b"".join(map(line, range(LINES)))

        def sent() -> httpx.Response | None:
            with contextlib.suppress(httpx.TransportError):
                answer = httpx.post(f"{scene.stack.url}/batches", content=file, headers=SENT, timeout=60)
                return answer if answer.is_success else None
            return None

        answer = eventually(sent, PATIENCE, what="the file is taken")
        batch_id = answer.json()["id"]
        api_dies(scene)  # it may be validating
        ended = "SELECT 1 FROM batch_lines WHERE status = 'completed'"
        eventually(lambda: len(scene.read(ended)) > LINES // 10, PATIENCE, what="some lines have ended")
        scene.stack.kill(worker)
        scene.worker()
        eventually(lambda: len(scene.read(ended)) > LINES // 2, PATIENCE, what="half of the lines have ended")
        with scene.caller.app.connection_for_write() as broker:
            broker.default_channel.client.flushdb()  # what a broker is like that was killed and forgot everything
        assert batch_ends(scene, batch_id) == ("completed", {"completed": LINES})
        shown_whole(scene, batch_id)
        scene.sound()


def killed_in_its_upload(scene: Scene) -> None:
    """Kill the API while a client sends its file."""

    def some() -> Iterator[bytes]:
        for number in range(LINES):
            if number == LINES // 2:
                scene.stack.kill("api")
            yield line(number)

    with pytest.raises(httpx.TransportError):
        httpx.post(f"{scene.stack.url}/batches", content=some(), headers=SENT, timeout=60)
    scene.api()


def shown_whole(scene: Scene, batch_id: str) -> None:
    """Kill the API while it sends results; asked again, another one sends all of them, each once."""
    url = f"{scene.stack.url}/batches/{batch_id}/results"
    with contextlib.suppress(httpx.TransportError), httpx.stream("GET", url, timeout=60) as answer:
        lines = answer.iter_lines()
        next(lines)
        scene.signal("api", signal.SIGKILL)
        for _ in lines:
            pass
    scene.stack.kill("api")
    scene.api()
    shown = [json.loads(one) for one in httpx.get(url, timeout=60).text.splitlines()]
    assert [one["custom_id"] for one in shown] == [f"line-{number}" for number in range(LINES)]
    texts = [one["response"]["body"]["steps"][0]["output"]["text"] for one in shown]
    assert texts == [f"<{number}>" for number in range(LINES)]


@pytest.mark.parametrize("play", [as_play(each_line_ends_once_whoever_is_killed)])
def test_a_batch_outlives_whoever_carries_it(play: tuple[str, Play], plays: dict[str, Future[None]]) -> None:
    plays[play[0]].result()
