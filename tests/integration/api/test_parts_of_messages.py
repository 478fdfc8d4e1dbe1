"""Images, files and audio in a message: what is stored, which turn has them, and what is refused."""

from __future__ import annotations

import hashlib
from typing import Any

import httpx
import pytest

from tests.integration.api import control
from tests.integration.api.conftest import Api, MakeApi
from tests.integration.api.control import JobDriver
from tests.integration.api.test_messages import MAY_IT, asks
from tests.integration.api.test_parts import made_artifact
from tests.support.pictures import PNG, base64_of

MODEL = "openai:gpt-5-mini"
PICTURE = {"type": "image", "data": base64_of(PNG), "filename": "dot.png"}
TEXT = {"type": "text", "text": "What is it?"}


@pytest.fixture
def api(make_api: MakeApi) -> Api:
    api = make_api(max_parts_bytes=20_000, model=MODEL)
    api.jobs.configure()
    control.publish(api, control.TOOLS)
    return api


def sent(api: Api, *parts: Any, thread: str = "t", **more: Any) -> httpx.Response:
    content = {"content": [*parts]} if parts else {}
    body = {"tenant_id": "default", "channel": "api", "thread": thread, "from": {"external_id": "ann"}}
    return api.http.post("/messages/inbound", json={**body, "async_processing": True, **content, **more})


def turn_of(api: Api, *parts: Any, **more: Any) -> dict[str, Any]:
    response = sent(api, *parts, **more)
    assert response.status_code == 202, response.text
    job: dict[str, Any] = api.http.get(f"/jobs/{response.json()['job_id']}").json()
    return job


def said_in(api: Api, conversation: Any) -> dict[str, Any]:
    rows = api.http.get(f"/conversations/{conversation}/messages").json()["items"]
    newest: dict[str, Any] = rows[0]
    return newest


def test_a_message_has_parts_as_a_job_has_them(api: Api) -> None:
    made_artifact(api, "charts/dot.png", PNG, "image/png")
    by_id = {"type": "image", "artifact_id": "charts/dot.png"}
    at_url = {"type": "file", "url": "https://example.org/a.pdf"}
    job = turn_of(api, TEXT, PICTURE, by_id, at_url, {"type": "text", "text": "Be brief."})

    digest = hashlib.sha256(PNG).hexdigest()
    assert job["input"] == "What is it?\n\nBe brief."
    assert [(part["type"], part["sha256"], part["url"]) for part in job["parts"]] == [
        ("image", digest, None),
        ("image", digest, None),
        ("file", None, "https://example.org/a.pdf"),
    ]
    row = said_in(api, job["conversation_id"])
    assert (row["text"], row["content"]["parts"]) == (job["input"], job["parts"])
    assert row["content"]["from"]["external_id"] == "ann"
    assert base64_of(PNG) not in str(api.jobs.execute("SELECT * FROM conversation_messages"))


def test_a_list_of_texts_is_a_text_and_a_picture_may_come_alone(api: Api) -> None:
    text = turn_of(api, TEXT, TEXT, thread="a")
    assert (text["input"], text["parts"]) == ("What is it?\n\nWhat is it?", [])
    assert "parts" not in said_in(api, text["conversation_id"])["content"]
    picture = turn_of(api, PICTURE, thread="b")
    assert (picture["input"], len(picture["parts"])) == ("", 1)


@pytest.mark.parametrize(
    ("parts", "status", "expected"),
    [
        ([{"type": "image"}], 422, "content.0: expected one of url, artifact_id and data, found none of them"),
        ([TEXT, {"type": "image", "data": "!"}], 422, "content.1.data: expected base64"),
        ([{"type": "film"}], 422, "content.0.type: "),
        ([{"type": "text", "text": " "}], 422, "content: expected a text that says something"),
        ([PICTURE] * 17, 422, "content: expected at most 16 images, files and audio parts, found 17"),
        ([{"type": "image", "url": "http://10.0.0.1/a.png"}], 422, "content.0.url: "),
        ([{"type": "image", "artifact_id": "nothing.png"}], 404, "there is no artifact"),
        ([{"type": "file", "data": base64_of(b"a" * 30_000), "media_type": "text/plain"}], 413, "content.0"),
    ],
)
def test_wrong_parts_are_refused_and_nothing_is_stored(
    api: Api, parts: list[Any], status: int, expected: str
) -> None:
    problem = sent(api, *parts)
    assert problem.status_code == status, problem.text
    assert expected in problem.json()["detail"]
    assert api.jobs.execute("SELECT 1 FROM conversation_messages") == []
    assert api.jobs.execute("SELECT 1 FROM payloads") == []


def test_an_empty_list_is_refused(api: Api) -> None:
    problem = sent(api, content=[])
    assert problem.json()["detail"] == "content: expected 1 to 64 parts, found 0"


def test_rules_that_read_text_only_refuse_parts_unless_the_conversation_has_another_agent(make_api: MakeApi) -> None:
    api = make_api(model="offline")
    api.jobs.configure()
    control.publish(api, control.TOOLS)
    for _ in range(2):  # where it would begin the conversation, and where that is there
        problem = sent(api, PICTURE)
        assert problem.status_code == 422
        assert problem.json()["detail"].startswith("content: the model 'offline' reads text only, found image; name")
        turn_of(api, TEXT)
    painter = {"name": "painter", "model": MODEL, "description": "You describe pictures."}
    assert api.http.put("/agents/painter", json=painter).status_code == 201
    talk = api.http.post("/conversations", json={"channel": "api", "thread": "u", "agent": "painter"}).json()
    assert turn_of(api, PICTURE, conversation_id=talk["id"], thread="u")["agent"]["name"] == "painter"


@pytest.mark.parametrize(
    "config", [{"conversation_policy": "merge"}, {"debounce_ms": 60_000, "debounce_most_ms": 60_000}]
)
def test_a_picture_joins_no_other_turn_and_a_text_after_it_joins_its_turn(api: Api, config: dict[str, Any]) -> None:
    api.jobs.configure(**config)
    first = turn_of(api, TEXT)
    if "conversation_policy" in config:
        assert JobDriver(api, first["id"]).claim_stage() is not None, "it runs, and takes messages in"
    picture = turn_of(api, TEXT, PICTURE)
    other = turn_of(api, PICTURE)
    text = turn_of(api, content={"text": "The red one."})

    assert len({first["id"], picture["id"], other["id"]}) == 3
    assert (text["id"], text["input"]) == (other["id"], "The red one.")
    assert [len(job["parts"]) for job in (first, picture, text)] == [0, 1, 1]


def test_a_picture_is_no_answer_to_a_question(api: Api) -> None:
    turn = turn_of(api, TEXT)
    asks(api, turn["id"], MAY_IT)
    waits = sent(api, {"type": "text", "text": "yes"}, PICTURE)
    assert (waits.status_code, waits.json()["behind_job_id"]) == (202, turn["id"])
    assert sent(api, {"type": "text", "text": "yes"}).json()["answered"]["action"] == "accept"
