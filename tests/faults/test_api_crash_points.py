"""An API process that dies at any point: the client asks again, and there is one job, one effect, one answer."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any
from uuid import UUID

import httpx
import psycopg
import pytest

from planq.api.app import API_CRASH_POINTS
from planq.shared.failpoints import VARIABLE, point_names
from tests.faults.batching import batch_ends, batch_of
from tests.faults.conftest import Play, Stage
from tests.faults.conversing import is_answered, says
from tests.faults.scene import MIXED, MIXED_TEXT, PATIENCE, Scene
from tests.support.batches import admitted, end_jobs
from tests.support.batches import settled as settled_lines
from tests.support.waiting import eventually

POINTS = point_names(API_CRASH_POINTS)

KEY = {"Idempotency-Key": "one-order"}
BODY = {"plan": {"calls": [{"tool_name": name, "arguments": arguments} for name, arguments in MIXED]}}

Recipe = Callable[[Scene, str], None]


def dies_of(scene: Scene, method: str, path: str, **request: Any) -> None:
    """Send a request that the API does not survive."""
    with pytest.raises(httpx.TransportError):
        httpx.request(method, f"{scene.stack.url}{path}", timeout=30, **request)
    scene.dies("api")


def with_tools(scene: Scene) -> None:
    scene.worker()
    eventually(lambda: scene.read("SELECT 1 FROM tools"), PATIENCE, what="the worker has published its tools")


def submitted(scene: Scene, point: str) -> None:
    with_tools(scene)
    scene.api(**{VARIABLE: point})
    dies_of(scene, "POST", "/jobs", json=BODY, headers=KEY)
    scene.api()
    answers = [httpx.post(f"{scene.stack.url}/jobs", json=BODY, headers=KEY, timeout=60) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [202, 202]
    assert len({answer.json()["id"] for answer in answers}) == 1
    rows = scene.read("SELECT id FROM jobs")
    assert [str(row["id"]) for row in rows] == [answers[0].json()["id"]]
    scene.completes(rows[0]["id"], MIXED_TEXT)


def cancelled(scene: Scene, point: str) -> None:
    scene.worker()
    scene.api(**{VARIABLE: point})
    job_id = scene.submit(("fault_hold", {"until": "never"}))
    scene.runs(job_id)
    dies_of(scene, "POST", f"/jobs/{job_id}/cancel")
    scene.api()
    for _ in range(2):
        answer = httpx.post(f"{scene.stack.url}/jobs/{job_id}/cancel", timeout=60)
        assert (answer.status_code, answer.json()["status"]) == (200, "cancelled")
    told = scene.read("SELECT count(*) AS n FROM events WHERE job_id = %s AND kind = 'job_cancelled'", job_id)
    assert told[0]["n"] == 1
    assert scene.steps(job_id) == ["cancelled"]


def settled_by_a_cancel(scene: Scene, point: str) -> None:
    """The API dies before, or after, it lets the next turn begin; a worker's sweeper sees to what is left."""
    scene.worker()
    scene.api(**{VARIABLE: point})
    hold = {"plan": {"calls": [{"tool_name": "fault_hold", "arguments": {"until": "never"}}]}}
    first = says(scene, "hold", submission=hold)
    second = says(scene, "calculate 1 + 2")
    assert first.job_id is not None
    assert second.job_id is not None
    scene.runs(first.job_id)
    dies_of(scene, "POST", f"/jobs/{first.job_id}/cancel")
    is_answered(scene, first.conversation_id, 2)
    assert scene.job(second.job_id)[0]["status"] == "completed"


def received(scene: Scene, point: str) -> None:
    """The channel sends its message again: it is stored once, and answered."""
    with_tools(scene)
    scene.api(**{VARIABLE: point})
    body = {"tenant_id": "default", "channel": "web", "from": {"external_id": "ann"}, "source_message_id": "m1"}
    body |= {"content": {"text": "calculate 40 + 2"}}
    dies_of(scene, "POST", "/messages/inbound", json=body)
    scene.api()
    answers = [httpx.post(f"{scene.stack.url}/messages/inbound", json=body, timeout=60) for _ in range(2)]
    assert ["42" in answer.json()["message"]["content"]["text"] for answer in answers] == [True, True]
    assert scene.read("SELECT count(*)::int AS n FROM jobs") == [{"n": 1}]


def erased(scene: Scene, point: str) -> None:
    scene.api(**{VARIABLE: point})
    first = says(scene, "my secret")
    path = f"/conversations/{first.conversation_id}"
    dies_of(scene, "DELETE", path)
    scene.api()
    answer = httpx.delete(f"{scene.stack.url}{path}", timeout=60)
    assert (answer.status_code, answer.json()["messages_in"]) == (200, 1)
    kept = scene.read("SELECT text, status FROM conversation_messages")
    assert {(row["text"], row["status"]) for row in kept} == {("", "erased")}


def held_job(scene: Scene, point: str) -> UUID:
    """Let a job run up to its first step, with an API that dies at a point."""
    scene.worker()
    scene.api(**{VARIABLE: point})
    job_id = scene.submit(("fault_hold", {"until": "go"}), ("fault_note", {"text": "$0.output.text"}))
    scene.runs(job_id)
    return job_id


def paused(scene: Scene, point: str) -> None:
    job_id = held_job(scene, point)
    dies_of(scene, "POST", f"/jobs/{job_id}/pause")
    scene.api()
    answer = httpx.post(f"{scene.stack.url}/jobs/{job_id}/pause", timeout=60)
    assert (answer.status_code, answer.json()["paused_at"] is None) == (200, False)
    (scene.folder / "go").touch()
    eventually(lambda: scene.steps(job_id)[0] == "succeeded", PATIENCE, what="what ran goes on to its end")
    assert scene.steps(job_id)[1] != "succeeded"
    assert httpx.post(f"{scene.stack.url}/jobs/{job_id}/resume", timeout=60).status_code == httpx.codes.OK
    scene.completes(job_id, "attempt 1", "<attempt 1>")


def resumed(scene: Scene, point: str) -> None:
    job_id = held_job(scene, point)
    assert httpx.post(f"{scene.stack.url}/jobs/{job_id}/pause", timeout=60).status_code == httpx.codes.OK
    (scene.folder / "go").touch()
    eventually(lambda: scene.steps(job_id)[0] == "succeeded", PATIENCE, what="what ran goes on to its end")
    dies_of(scene, "POST", f"/jobs/{job_id}/resume")
    scene.api()
    # The second time it may have ended already, without any failure to try again.
    answer = httpx.post(f"{scene.stack.url}/jobs/{job_id}/resume", timeout=60)
    assert answer.status_code in (httpx.codes.OK, httpx.codes.CONFLICT)
    scene.completes(job_id, "attempt 1", "<attempt 1>")


def settled(scene: Scene, point: str) -> None:
    first = scene.worker()
    job_id = scene.submit(("fault_charge", {"text": "a", "until": "never"}), ("fault_note", {"text": "b"}))
    scene.runs(job_id)
    scene.stack.kill(first)
    scene.worker()
    scene.api(**{VARIABLE: point})
    eventually(lambda: scene.steps(job_id)[0] == "waiting", PATIENCE, what="it asks what became of the call")
    path, verdict = f"/jobs/{job_id}/steps/0/settle", {"outcome": "happened", "output": {"text": "told"}}
    dies_of(scene, "POST", path, json=verdict)
    scene.api()
    answer = httpx.post(f"{scene.stack.url}{path}", json=verdict, timeout=60)
    assert answer.status_code in (httpx.codes.OK, httpx.codes.CONFLICT)
    scene.completes(job_id, "told", "<b>")
    assert scene.paid()[f"{job_id}/0"] == 1


def answered(scene: Scene, point: str) -> None:
    first = scene.worker()
    job_id = scene.submit(("fault_charge", {"text": "a", "until": "never"}), ("fault_note", {"text": "b"}))
    scene.runs(job_id)
    scene.stack.kill(first)
    scene.worker()
    eventually(lambda: scene.steps(job_id)[0] == "waiting", PATIENCE, what="it asks what became of the call")
    # What the call asks becomes a question of another kind, whose answer ends its step by itself.
    (asked,) = scene.read("UPDATE questions SET kind = 'approval', schema = NULL RETURNING id")
    scene.api(**{VARIABLE: point})
    path, said = f"/elicitations/{asked['id']}", {"action": "decline", "reason": "no"}
    dies_of(scene, "POST", path, json=said)
    scene.api()
    answer = httpx.post(f"{scene.stack.url}{path}", json=said, timeout=60)
    assert answer.status_code == (httpx.codes.CONFLICT if point.endswith(":after") else httpx.codes.OK)
    job, steps = scene.ends(job_id)
    assert (job["status"], steps[0]["error"]["code"]) == ("completed", "declined")


DOCUMENTS = {
    "agents": {"json": {"name": "one"}},
    "skills": {"content": "Be brief.", "headers": {"Content-Type": "text/markdown"}},
}


def document_stored(scene: Scene, point: str) -> None:
    kind = point.partition(".")[0]
    scene.api(**{VARIABLE: point})
    dies_of(scene, "PUT", f"/{kind}/one", **DOCUMENTS[kind])
    scene.api()
    url = f"{scene.stack.url}/{kind}/one"
    answers = [httpx.request("PUT", url, timeout=30, **DOCUMENTS[kind]) for _ in range(2)]
    assert answers[0].status_code == (200 if point.endswith(":after") else 201)
    assert [answer.json()["version"] for answer in answers] == [1, 1]


def document_retired(scene: Scene, point: str) -> None:
    kind = point.partition(".")[0]
    scene.api(**{VARIABLE: point})
    url = f"{scene.stack.url}/{kind}/one"
    assert httpx.request("PUT", url, timeout=30, **DOCUMENTS[kind]).status_code == 201
    dies_of(scene, "DELETE", f"/{kind}/one")
    scene.api()
    url = f"{scene.stack.url}/{kind}/one"
    assert httpx.delete(url, timeout=60).status_code == (404 if point.endswith(":after") else 204)
    assert httpx.get(url, timeout=60).status_code == 404
    assert httpx.get(f"{url}?version=1", timeout=60).status_code == 200


def schedule_deleted(scene: Scene, point: str) -> None:
    schedule_id = scene.schedule("calculate 40 + 2", "1 hour")
    scene.api(**{VARIABLE: point})
    dies_of(scene, "DELETE", f"/schedules/{schedule_id}")
    scene.api()
    url = f"{scene.stack.url}/schedules"
    assert len(httpx.get(url, timeout=60).json()["items"]) == (0 if point.endswith(":after") else 1)
    assert httpx.delete(f"{url}/{schedule_id}", timeout=60).status_code == (404 if point.endswith(":after") else 204)
    assert httpx.get(url, timeout=60).json()["items"] == []


LINES = b'{"custom_id": "a", "body": {"input": "say a"}}\n{"custom_id": "b", "body": {"input": "say b"}}\n'
FILE = {"Content-Type": "application/jsonl"}


def is_validated(scene: Scene) -> None:
    """See that there is one batch, whose every line was looked at once."""
    ready = [{"status": "in_progress", "total": 2, "valid": 2, "invalid": 0, "pause_reason": "asked"}]
    batches = "SELECT status::text, total, valid, invalid, pause_reason::text FROM batches"
    eventually(lambda: scene.read(batches) == ready, PATIENCE, what="both lines are validated")
    lines = scene.read("SELECT custom_id, status::text, body->>'input' AS input FROM batch_lines ORDER BY line")
    assert [(one["custom_id"], one["status"], one["input"]) for one in lines] == [
        ("a", "valid", "say a"),
        ("b", "valid", "say b"),
    ]


def batch_sent(scene: Scene, point: str) -> None:
    """The client sends its file again until it is taken: what the dead process holds is given up after a while."""
    scene.api(**{VARIABLE: point})
    dies_of(scene, "POST", "/batches?start=false", content=LINES, headers={**FILE, **KEY})
    scene.api()
    url = f"{scene.stack.url}/batches?start=false"
    taken = lambda: httpx.post(url, content=LINES, headers={**FILE, **KEY}, timeout=60).status_code == 202  # noqa: E731
    eventually(taken, PATIENCE, what="the file is taken")
    is_validated(scene)


def batch_given_up(scene: Scene, point: str) -> None:
    scene.api(**{VARIABLE: point})
    dies_of(scene, "POST", "/batches", content=b"\n\n", headers=FILE)
    scene.api()
    eventually(lambda: scene.read("SELECT id FROM batches") == [], PATIENCE, what="nothing is left of the upload")


def batch_validated(scene: Scene, point: str) -> None:
    scene.api(**{VARIABLE: point})
    with contextlib.suppress(httpx.TransportError):  # it may die before it answers
        httpx.post(f"{scene.stack.url}/batches?start=false", content=LINES, headers=FILE, timeout=30)
    scene.dies("api")
    scene.api()
    is_validated(scene)


def upload_abandoned(scene: Scene, point: str) -> None:
    scene.api(**{VARIABLE: point})
    scene.read(
        "INSERT INTO batches (id, tenant_id, held_until) VALUES (gen_random_uuid(), 'default', now()) RETURNING id"
    )
    scene.dies("api")
    scene.api()
    eventually(lambda: scene.read("SELECT id FROM batches") == [], PATIENCE, what="nothing is left of the upload")


def batch_moved(scene: Scene, point: str) -> None:
    """The API dies where somebody moves a batch; asked again, it is moved, and every line ends once."""
    what = point.partition(".")[2].partition(":")[0]
    batch_id = batch_of(scene, *[("fault_note", {"text": str(n)}) for n in range(3)])
    if what == "retry":
        with psycopg.connect(scene.database_url, autocommit=True) as connection:
            end_jobs(connection, admitted(connection), "failed")
            settled_lines(connection)
    scene.api(**{VARIABLE: point})
    url = f"{scene.stack.url}/batches/{batch_id}"
    if what == "resume":
        assert httpx.post(f"{url}/pause", timeout=60).status_code == httpx.codes.OK
    dies_of(scene, "POST", f"/batches/{batch_id}/{what}")
    scene.api()
    answer = httpx.post(f"{url}/{what}", timeout=60)
    assert answer.status_code == httpx.codes.OK
    scene.worker()
    if what == "pause":
        assert answer.json()["pause_reason"] == "asked"
        assert httpx.post(f"{url}/resume", timeout=60).status_code == httpx.codes.OK
    end = "cancelled" if what == "cancel" else "completed"
    assert batch_ends(scene, batch_id) == (end, {end: 3})


REACH: dict[str, Recipe] = {
    "requests.submit": submitted,
    "requests.cancel": cancelled,
    "requests.pause": paused,
    "requests.resume": resumed,
    "requests.settle": settled,
    "publisher.publish_soon": submitted,
    "agents.put": document_stored,
    "agents.retire": document_retired,
    "skills.put": document_stored,
    "skills.retire": document_retired,
    "schedules.delete": schedule_deleted,
    "questions.answer": answered,
    "conversations.receive": received,
    "conversations.settle": settled_by_a_cancel,
    "conversations.erase": erased,
    **dict.fromkeys(("batch_control.cancel", "batch_control.pause"), batch_moved),
    **dict.fromkeys(("batch_control.resume", "batch_control.retry"), batch_moved),
    "batches.begin": batch_sent,
    "batches.add_lines": batch_sent,
    "batches.end_upload": batch_sent,
    "batches.drop": batch_given_up,
    "batches.drop_abandoned": upload_abandoned,
    "batches.take": batch_validated,
    "batches.store_checked": batch_validated,
    "batches.end_validation": batch_validated,
}


DOUBLES = {
    *("agents.retire:after", "skills.put:after", "skills.retire:after", "batch_control.resume:after"),
    *("batch_control.cancel:after", "batches.end_upload:after", "batches.end_validation:after"),
    *("batches.drop_abandoned:after", "requests.settle:after"),
}
"""Whose recipe another point of the same route or of the same document plays too."""


def die_and_ask_again(point: str, recipe: Recipe, stage: Stage) -> None:
    with stage() as scene:
        recipe(scene, point)
        scene.sound()


def test_every_crash_point_is_reached() -> None:
    """A writing method that the API's store gains needs a recipe in `REACH`, and every recipe its method."""
    assert {point.partition(":")[0] for point in POINTS} == set(REACH)


@pytest.mark.parametrize(
    "play",
    [
        pytest.param(
            (point, partial(die_and_ask_again, point, REACH[point.partition(":")[0]])),
            id=point,
            marks=[pytest.mark.whole] if point.endswith(":before") or point in DOUBLES else [],
        )
        for point in POINTS
        if point.partition(":")[0] in REACH
    ],
)
def test_a_client_that_asks_again_gets_the_one_job(play: tuple[str, Play], plays: dict[str, Future[None]]) -> None:
    plays[play[0]].result()
