"""Images, files and audio in the input of a job and of a batch's line: what is stored, and what is refused."""

from __future__ import annotations

import hashlib
import json
from typing import Any
from uuid import UUID

import pytest

from planq.shared.agentic.plan.compile import compile_plan
from planq.shared.agentic.plan.document import Plan
from planq.shared.agentic.references.resolution import as_called
from planq.shared.kernel.ids import StepRef
from planq.shared.kernel.job_store import ArtifactRecord
from planq.shared.kernel.new_ids import new_id
from planq.shared.kernel.states import JobStatus
from planq.shared.kernel.store.transitions import PostgresJobStore
from planq.shared.platform.database import Database
from planq.shared.platform.values.encoding import JsonText
from planq.shared.subjects.payloads.store import PayloadStore
from tests.integration.api.conftest import TOOLS, Api, MakeApi
from tests.support.claiming import claim_stage, claim_step
from tests.support.pictures import PDF, PNG, WAV, base64_of, png
from tests.support.waiting import eventually

MODEL = "openai:gpt-5-mini"
PICTURE = {"type": "image", "data": base64_of(PNG)}
TEXT = {"type": "text", "text": "What is it?"}


@pytest.fixture
def api(make_api: MakeApi) -> Api:
    api = make_api(max_parts_bytes=20_000)
    api.jobs.configure()
    api.jobs.publish_tools()
    return api


def submitted(api: Api, *parts: Any, **more: Any) -> dict[str, Any]:
    return api.submit({"input": [*parts], "model": MODEL, **more})


def refused(api: Api, *parts: Any, **more: Any) -> dict[str, Any]:
    response = api.http.post("/jobs", json={"input": [*parts], "model": MODEL, **more})
    assert response.status_code in (404, 413, 422), response.text
    assert api.jobs.execute("SELECT 1 FROM jobs") == api.jobs.execute("SELECT 1 FROM payloads") == []
    problem: dict[str, Any] = response.json()
    return problem


def made_artifact(api: Api, name: str, data: bytes, media_type: str, tenant: str = "default") -> None:
    """Store an artifact of bytes as the step of a job does."""
    job = api.submit()

    async def work(database: Database) -> None:
        store, payloads = PostgresJobStore(database, new_id(), as_called), PayloadStore(database)
        stage = await claim_stage(store, UUID(job["id"]), [JobStatus.QUEUED])
        assert stage is not None
        plan = {"calls": [{"tool_name": TOOLS[0].name, "arguments": {"query": "q"}}]}
        compiled = compile_plan(Plan.model_validate(plan), {tool.name: tool for tool in TOOLS})
        await store.accept_plan(stage, "caller", plan, compiled.steps, [])
        step = await claim_step(store, StepRef(UUID(job["id"]), 0, 0))
        assert step is not None
        digest = await payloads.put("default", data, b'{"value": null, "is_whole": false}')
        made = ArtifactRecord(name, None, None, {}, hash=digest, media_type=media_type)
        assert (
            await store.succeed_step(step, JsonText(b'{"text":"x"}'), ArtifactRecord(None, None, None, beside=[made]))
        ).applied

    api.jobs.run(work)
    if tenant != "default":
        api.jobs.execute("INSERT INTO tenants (id, name) VALUES (%s, %s)", tenant, tenant)
        api.jobs.execute("UPDATE payloads SET tenant_id = %s", tenant)
        api.jobs.execute("UPDATE artifacts SET tenant_id = %s", tenant)


def test_texts_are_the_input_and_bytes_are_stored_apart_from_the_job(api: Api) -> None:
    url = "https://example.org/a.pdf"
    job = submitted(
        api,
        TEXT,
        {**PICTURE, "filename": "dot.png"},
        {"type": "text", "text": "Be brief."},
        {"type": "file", "url": url, "media_type": "application/pdf"},
        {"type": "audio", "data": base64_of(WAV)},
    )

    assert job["input"] == "What is it?\n\nBe brief."
    nothing = dict.fromkeys(("media_type", "filename", "sha256", "bytes", "url"))
    digests = [hashlib.sha256(data).hexdigest() for data in (PNG, WAV)]
    picture = {
        "type": "image",
        "media_type": "image/png",
        "filename": "dot.png",
        "sha256": digests[0],
        "bytes": len(PNG),
    }
    sound = {"type": "audio", "media_type": "audio/wav", "sha256": digests[1], "bytes": len(WAV)}
    expected = [
        {**nothing, **picture, "filename": "dot.png"},
        {**nothing, "type": "file", "media_type": "application/pdf", "url": url},
        {**nothing, **sound},
    ]
    assert job["parts"] == expected
    assert api.http.get(f"/jobs/{job['id']}").json()["parts"] == expected
    stored = api.jobs.execute("SELECT hash, body FROM payloads")
    assert {row["hash"].hex(): bytes(row["body"]) for row in stored} == dict(zip(digests, (PNG, WAV), strict=True))
    assert base64_of(PNG) not in str(api.jobs.execute("SELECT * FROM jobs"))


def test_a_list_of_texts_is_a_text(api: Api) -> None:
    job = api.submit({"input": [TEXT, TEXT]})
    assert (job["input"], job["parts"]) == ("What is it?\n\nWhat is it?", [])
    assert api.jobs.execute("SELECT parts FROM jobs") == [{"parts": None}]


def test_a_picture_may_come_without_a_text(api: Api) -> None:
    job = submitted(api, PICTURE)
    assert (job["input"], len(job["parts"])) == ("", 1)


def test_an_artifact_of_the_tenant_is_a_part_by_its_id(api: Api) -> None:
    made_artifact(api, "charts/dot.png", PNG, "image/png")
    job = submitted(api, TEXT, {"type": "image", "artifact_id": "charts/dot.png"})
    (part,) = job["parts"]
    assert (part["filename"], part["sha256"]) == ("dot.png", hashlib.sha256(PNG).hexdigest())
    assert api.jobs.execute("SELECT count(*) AS n FROM payloads") == [{"n": 1}]


def test_an_artifact_of_another_tenant_is_not_there(api: Api) -> None:
    made_artifact(api, "charts/dot.png", PNG, "image/png", tenant="other")
    part = {"type": "image", "artifact_id": "charts/dot.png"}
    response = api.http.post("/jobs", json={"input": [TEXT, part], "model": MODEL})
    assert (response.status_code, response.json()["code"]) == (404, "not_found")


@pytest.mark.parametrize(
    ("part", "field", "told"),
    [
        ({"type": "video", "url": "https://e.org/x"}, "input.1.type", "'text', 'image', 'file' or 'audio'"),
        ({"url": "https://e.org/x"}, "input.1.type", "Field required"),
        ("a picture", "input.1", "valid dictionary"),
        ({**PICTURE, "url": "https://e.org/x"}, "input.1", "one of url, artifact_id and data, found url and data"),
        ({"type": "image"}, "input.1", "found none of them"),
        ({"type": "text"}, "input.1.text", "expected a text"),
        ({**TEXT, "data": "aGk="}, "input.1.data", "a text alone"),
        ({**PICTURE, "text": "x"}, "input.1.text", "only a part of the type text"),
        ({**PICTURE, "colour": "red"}, "input.1.colour", "not permitted"),
        ({"type": "image", "data": "no base64!"}, "input.1.data", "expected base64"),
        ({"type": "image", "data": ""}, "input.1.data", "media_type"),
        ({"type": "image", "data": base64_of(b"hello")}, "input.1.data", "expected a media_type"),
        ({**PICTURE, "media_type": "image/svg+xml"}, "input.1.data", "found image/svg+xml"),
        ({**PICTURE, "media_type": "image/jpeg"}, "input.1.data", "expected image/jpeg, found bytes of image/png"),
        ({**PICTURE, "media_type": "a picture"}, "input.1.media_type", "such as image/png"),
        ({**PICTURE, "filename": "../x"}, "input.1.filename", "match pattern"),
        ({"type": "image", "data": base64_of(PDF)}, "input.1.data", "found application/pdf"),
        ({"type": "file", "data": base64_of(b"\xff\xfe"), "media_type": "text/plain"}, "input.1.data", "in UTF-8"),
        ({"type": "image", "url": "http://127.0.0.1/x"}, "", "PLANQ_HTTP_FETCH_ALLOW_HOSTS"),
        ({"type": "image", "url": "file:///etc/passwd"}, "", "expected https://host/path"),
        ({"type": "image", "url": "https://me:secret@e.org/x"}, "", "without a user name or password"),
        ({"type": "image", "artifact_id": "\x00"}, "input.1.artifact_id", "the id of an artifact"),
    ],
)
def test_a_wrong_part_is_refused_with_its_place(api: Api, part: Any, field: str, told: str) -> None:
    problem = refused(api, TEXT, part)
    assert (problem["status"], told in problem["detail"]) == (422, True), problem
    assert [one["field"] for one in problem.get("errors") or [{"field": ""}]] == [field]


def test_too_many_and_too_large_parts_are_refused(api: Api) -> None:
    assert "at most 16 images" in refused(api, TEXT, *[PICTURE] * 17)["detail"]
    assert "expected 1 to 64 parts, found 65" in refused(api, *[TEXT] * 65)["detail"]
    assert "expected 1 to 64 parts, found 0" in refused(api)["detail"]
    large = {"type": "image", "data": base64_of(PNG + bytes(9_990))}
    problem = refused(api, large, large)
    assert (problem["status"], problem["limit"], problem["code"]) == (413, 20_000, "too_large"), problem
    problem = refused(api, {"type": "image", "data": base64_of(PNG + bytes(20_000))})
    assert (problem["status"], problem["limit"]) == (413, 20_000), problem


def test_a_model_that_reads_text_alone_is_refused_at_once(api: Api) -> None:
    problem = refused(api, TEXT, PICTURE, model="offline")
    assert "'offline' reads text only, found image" in problem["detail"]


def test_an_input_of_another_type_is_refused(api: Api) -> None:
    response = api.http.post("/jobs", json={"input": 5})
    assert (response.status_code, response.json()["errors"][0]["field"]) == (422, "input")


def collected(api: Api) -> set[bytes]:
    """Collect what nothing refers to, as if all was put two hours ago, and return the bytes that are left."""
    api.jobs.execute("UPDATE payloads SET created_at = now() - interval '2 hours'")

    async def work(database: Database) -> None:
        store = PayloadStore(database)
        while await store.collect(10):
            pass

    api.jobs.run(work)
    return {bytes(row["body"]) for row in api.jobs.execute("SELECT body FROM payloads")}


def test_the_bytes_stay_as_long_as_a_job_or_a_line_has_them(api: Api) -> None:
    job = submitted(api, TEXT, PICTURE)
    other = {"type": "image", "data": base64_of(png(7))}
    line = {"custom_id": "a", "body": {"input": [TEXT, other], "model": MODEL}}
    posted = api.http.post(
        "/batches?start=false", content=json.dumps(line) + "\n", headers={"Content-Type": "application/jsonl"}
    )
    assert posted.status_code in (201, 202), posted.text
    batch = posted.json()["id"]
    count = "SELECT 1 FROM batch_lines WHERE status = 'valid'"
    eventually(lambda: api.jobs.execute(count) != [], what="the line is validated")

    assert collected(api) == {PNG, png(7)}
    api.jobs.execute("DELETE FROM jobs WHERE id = %s", job["id"])
    assert collected(api) == {png(7)}
    api.jobs.execute("DELETE FROM batches WHERE id = %s", batch)
    assert collected(api) == set()


def test_a_line_with_a_wrong_part_is_told_by_its_number(api: Api) -> None:
    lines = [
        {"custom_id": "a", "body": {"input": [TEXT, {"type": "image"}], "model": MODEL}},
        {"custom_id": "b", "body": {"input": [TEXT, PICTURE], "model": MODEL}},
    ]
    file = "".join(json.dumps(line) + "\n" for line in lines)
    api.http.post("/batches?start=false", content=file, headers={"Content-Type": "application/jsonl"})
    look = "SELECT line, status, error::text AS error, parts FROM batch_lines ORDER BY line"
    eventually(lambda: {row["status"] for row in api.jobs.execute(look)} == {"invalid", "valid"}, what="validated")
    first, second = api.jobs.execute(look)
    assert ("input.1: expected one of url" in first["error"], first["parts"]) == (True, None)
    assert second["parts"][0]["sha256"] == hashlib.sha256(PNG).hexdigest()
