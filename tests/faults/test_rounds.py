"""A worker dies in the middle of a job of several rounds: no finished step runs again, and it comes out the same."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import httpx
import pytest
import redis

from planq.shared.kernel.states import Strategy
from tests.faults.conftest import Play, Stage, as_play
from tests.faults.scene import PATIENCE, Scene
from tests.integration.llm.dialects import KEY, OPENAI_CHAT
from tests.integration.llm.wire import Reply, wire_server
from tests.support.waiting import eventually

TEXT = (
    'call fault_look with {"text": "a"}, then call fault_pay with {"text": "b"}, '
    'then call fault_note with {"text": "c"}'
)
NAME = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
OUTPUTS = ["<a>", "<b>", "<c>"]

POINTS = {
    "before the model is asked": "planner.turn:before",
    "after the model's reply": "planner.turn:after",
    "before the plan is accepted": "store.accept_plan:before",
    "after the plan is accepted": "store.accept_plan:after",
    "before the first step is stored": "store.succeed_step:before",
    "after the last step, with the next turn claimed": "store.succeed_step:after@3",
    "before the model is asked again": "planner.turn:before@2",
    "after the last turn's reply": "planner.turn:after@2",
    "before the end": "store.end_job:before",
    "after the end": "store.end_job:after",
}


def came_out_right(scene: Scene, job_id: UUID) -> tuple[Any, list[Any]]:
    """See that all three calls were made and answered from, the unsafe one once."""
    job, steps = scene.ends(job_id)
    assert (job["status"], job["stop_reason"], job["round"]) == ("completed", "answered", 1), scene._told(job_id)
    assert [step["output"]["text"] for step in steps] == OUTPUTS, scene._told(job_id)
    assert scene.paid()[f"{job_id}/1"] == 1
    # A call that died with its worker before it was recorded is made again, and is none of the job's.
    assert job["model_calls"] == 2
    return job, steps


def dies(strategy: Strategy, point: str, stage: Stage) -> None:
    with stage() as scene:
        job_id = scene.submit(text=TEXT, strategy=strategy)
        scene.died_at(point)
        finished = [row["index"] for row in scene.read("SELECT index FROM steps WHERE status = 'succeeded'")]
        attempts = {row["index"]: row["attempt"] for row in scene.read("SELECT index, attempt FROM steps")}
        scene.worker()
        _, steps = came_out_right(scene, job_id)
        assert [step["attempt"] for step in steps if step["index"] in finished] == [attempts[n] for n in finished]
        scene.sound()


def between_two_parallel_tools(scene: Scene) -> None:
    """One of two calls of a turn has ended when the worker is killed: only the other one runs again."""
    text = 'call fault_look with {"text": "a"}, then call fault_hold with {"until": "go"}'
    job_id = scene.submit(text=text, strategy=Strategy.REACT)
    name = scene.worker()
    scene.runs(job_id, 1)
    eventually(lambda: scene.steps(job_id)[0] == "succeeded", PATIENCE, what="the other one has ended")
    scene.signal(name, signal.SIGKILL)
    scene.dies(name, -signal.SIGKILL)
    (scene.folder / "go").touch()
    scene.worker()
    job, steps = scene.ends(job_id)
    assert (job["status"], job["stop_reason"]) == ("completed", "answered")
    assert [(step["status"], step["attempt"]) for step in steps] == [("succeeded", 1), ("succeeded", 2)]
    assert scene.ran()[f"{job_id}/0"] == 1
    scene.sound()


GUIDE_POINTS = {
    "before the planning call": "planner.guide:before",
    "after its reply": "planner.guide:after",
    "before the guide is accepted": "store.accept_plan:before",
    "after it is accepted, with the first turn claimed": "store.accept_plan:after",
    "in the first turn": "planner.turn:after",
}


def dies_with_a_guide(point: str, stage: Stage) -> None:
    """One guide, whatever dies around it, and the turns go by it."""
    with stage() as scene:
        job_id = scene.submit(text=TEXT, strategy=Strategy.GUIDED)
        scene.died_at(point)
        scene.worker()
        job, steps = scene.ends(job_id)
        assert (job["status"], job["stop_reason"], job["round"]) == ("completed", "answered", 2), scene._told(job_id)
        assert [step["output"]["text"] for step in steps] == OUTPUTS
        assert scene.paid()[f"{job_id}/1"] == 1
        assert job["model_calls"] == 3
        guides = scene.read("SELECT round, errors FROM plans WHERE source = 'guide'")
        assert [(row["round"], row["errors"]) for row in guides] == [(0, None)]
        scene.sound()


def in_an_unsafe_tool(scene: Scene) -> None:
    """Nobody knows what became of the call: its step has failed, the model is told so, and the job goes on."""
    text = 'call fault_pay with {"text": "a", "until": "never"}, then call fault_note with {"text": "b"}'
    job_id = scene.submit(text=text, strategy=Strategy.REACT)
    name = scene.worker()
    scene.runs(job_id)
    scene.signal(name, signal.SIGKILL)
    scene.dies(name, -signal.SIGKILL)
    scene.worker()
    job, steps = scene.ends(job_id)
    assert (job["status"], job["stop_reason"]) == ("completed", "answered")
    assert [step["status"] for step in steps] == ["failed", "succeeded"]
    assert steps[0]["error"]["code"] == "outcome_unknown"
    assert scene.paid()[f"{job_id}/0"] == 1
    scene.sound()


def everything_stops_and_starts(scene: Scene) -> None:
    """Every process and the wake-ups are gone between two rounds."""
    job_id = scene.submit(text=TEXT, strategy=Strategy.LOOP)
    name, folder = scene.held("planner.turn:before@2")
    scene.stands(job_id, name, folder)
    scene.signal(name, signal.SIGKILL)
    scene.dies(name, -signal.SIGKILL)
    scene.worker()
    _, steps = came_out_right(scene, job_id)
    assert [step["attempt"] for step in steps] == [1, 1, 1]
    scene.sound()


ROUNDS = [
    {"type": "tool_calls", "calls": [{"number": 0, "tool_name": "fault_look", "arguments": {"text": "a"}}]},
    {
        "type": "tool_calls",
        "calls": [
            {"number": 1, "tool_name": "fault_pay", "arguments": {"text": "$0.output.text"}},
            {"number": 2, "kind": "elicitation", "message": "To whom?", "requested_schema": NAME},
        ],
    },
    {
        "type": "tool_calls",
        "calls": [{"number": 3, "tool_name": "fault_note", "arguments": {"text": "$2.output.name"}}],
    },
    {"type": "direct_response", "content": "done"},
]


def asked_in_the_second_round(scene: Scene) -> None:
    """Every process is stopped and the broker forgets all while a person is asked: no attempt is made again."""
    with wire_server() as model:
        model.script(*[Reply(OPENAI_CHAT.reply("", decision)) for decision in ROUNDS])
        env = {"OPENAI_BASE_URL": f"{model.url}/v1", "OPENAI_API_KEY": KEY}
        job_id = scene.submit(text="do it", model=OPENAI_CHAT.model, strategy=Strategy.LOOP)
        scene.api()
        name = scene.worker(**env)
        eventually(lambda: scene.steps(job_id) == ["succeeded", "succeeded", "waiting"], PATIENCE, what="it asks")
        for process in (name, "api"):
            scene.signal(process, signal.SIGKILL)
            scene.dies(process, -signal.SIGKILL)
        where = urlsplit(scene.broker_url)
        with redis.Redis(unix_socket_path=where.path, db=int(where.query.rpartition("=")[2])) as broker:
            broker.flushdb()
        scene.api()
        (question,) = httpx.get(f"{scene.stack.url}/jobs/{job_id}/elicitations", timeout=60).json()["items"]
        answer = {"action": "accept", "content": {"name": "Ada"}}
        given = httpx.post(f"{scene.stack.url}/elicitations/{question['id']}", json=answer, timeout=60)
        assert given.status_code == httpx.codes.OK, given.text
        scene.worker(**env)
        job, steps = scene.ends(job_id)
    assert (job["status"], job["stop_reason"], job["answer"], job["model_calls"]) == (
        "completed",
        "answered",
        "done",
        4,
    )
    assert [(step["round"], step["attempt"], step["status"]) for step in steps] == [
        (0, 1, "succeeded"),
        (1, 1, "succeeded"),
        (1, 1, "succeeded"),
        (2, 1, "succeeded"),
    ]
    assert steps[3]["output"] == {"text": "<Ada>"}
    assert scene.paid()[f"{job_id}/1"] == 1
    scene.sound()


def another_worker_asks_the_same(scene: Scene) -> None:
    """A worker is killed between two rounds: the model is asked what it is asked where nobody dies."""
    asked = []
    for is_killed in (False, True):
        with wire_server() as model:
            model.script(*[Reply(OPENAI_CHAT.reply("", decision)) for decision in LOOKS])
            env = {"OPENAI_BASE_URL": f"{model.url}/v1", "OPENAI_API_KEY": KEY}
            job_id = scene.submit(text="do it", model=OPENAI_CHAT.model, strategy=Strategy.LOOP)
            if is_killed:
                scene.died_at("planner.turn:before@3", **env)
            name = scene.worker(**env)
            job, _ = scene.ends(job_id)
            asked.append([request.body["messages"] for request in model.requests])
            scene.signal(name, signal.SIGKILL)
            scene.dies(name, -signal.SIGKILL)
        assert (job["status"], job["round"], job["model_calls"]) == ("completed", 3, 4)
    assert asked[0] == asked[1]
    scene.sound()


LOOKS = [
    *(
        {"type": "tool_calls", "calls": [{"number": n, "tool_name": "fault_look", "arguments": {"text": str(n)}}]}
        for n in range(3)
    ),
    {"type": "direct_response", "content": "done"},
]


def plays_of_turns() -> Iterator[object]:
    """Each place with one of both strategies in turn; a whole run tries it with both."""
    for number, (where, point) in enumerate(POINTS.items()):
        often = (Strategy.LOOP, Strategy.REACT)[number % 2]
        for strategy in (Strategy.LOOP, Strategy.REACT):
            value, name = partial(dies, strategy, point), f"{strategy} {where}"
            marks = [] if strategy is often else [pytest.mark.whole]
            yield pytest.param((name, value), id=name, marks=marks)


PLAYS = [
    *plays_of_turns(),
    *[
        pytest.param(
            (f"guided {name}", partial(dies_with_a_guide, point)),
            id=f"guided {name}",
            marks=[pytest.mark.whole] if name.startswith("before") else [],
        )
        for name, point in GUIDE_POINTS.items()
    ],
    *map(
        as_play,
        [
            between_two_parallel_tools,
            in_an_unsafe_tool,
            everything_stops_and_starts,
            asked_in_the_second_round,
            another_worker_asks_the_same,
        ],
    ),
]


@pytest.mark.parametrize("play", PLAYS)
def test_rounds_survive_the_death_of_a_worker(play: tuple[str, Play], plays: dict[str, Future[None]]) -> None:
    plays[play[0]].result()
