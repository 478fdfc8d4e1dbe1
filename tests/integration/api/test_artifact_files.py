"""Artifacts of bytes over HTTP: whole, in parts, under headers that keep a browser from running anything of them."""

from __future__ import annotations

import hashlib
from pathlib import Path
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
from planq.shared.platform.errors import NotFound
from planq.shared.platform.values.encoding import JsonText
from planq.shared.subjects.jobs.store import RequestStore
from planq.shared.subjects.payloads.objects import open_objects
from planq.shared.subjects.payloads.store import SLICE_BYTES, PayloadStore
from tests.integration.api.conftest import TOOLS, Api, problem_of
from tests.support.claiming import claim_stage, claim_step

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 12_000
FILES = {
    "charts/sales": (PNG, "image/png"),
    "page": (b"<script>alert(1)</script>", "text/html"),
    "vector": (b"<svg/>", "image/svg+xml"),
    "script": (b"alert(1)", "text/javascript"),
    "empty": (b"", "text/plain"),
}
TAG = f'"{hashlib.sha256(PNG).hexdigest()}"'


@pytest.fixture
def job(api: Api) -> dict[str, Any]:
    """A job whose step has made files."""
    job = api.submit()
    plan = {"calls": [{"tool_name": TOOLS[0].name, "arguments": {"query": "q"}}]}

    async def work(database: Database) -> None:
        store, payloads = PostgresJobStore(database, new_id(), as_called), PayloadStore(database)
        stage = await claim_stage(store, UUID(job["id"]), [JobStatus.QUEUED])
        assert stage is not None
        compiled = compile_plan(Plan.model_validate(plan), {tool.name: tool for tool in TOOLS})
        await store.accept_plan(stage, "caller", plan, compiled.steps, [])
        step = await claim_step(store, StepRef(UUID(job["id"]), 0, 0))
        assert step is not None
        made = []
        for name, (data, media_type) in FILES.items():
            digest = await payloads.put("default", data, b'{"value": null, "is_whole": false}')
            told = {"user_id": "ada", "skill_name": "Drawing by hand"}
            made.append(ArtifactRecord(name, "drawing", None, told, hash=digest, media_type=media_type))
        text = JsonText(b'{"text":"done"}')
        record = ArtifactRecord(None, None, None, beside=made, content="Five files.")
        assert (await store.succeed_step(step, text, record)).applied

    api.jobs.run(work)
    return job


def test_the_bytes_come_whole_under_their_type(api: Api, job: dict[str, Any]) -> None:
    response = api.http.get("/artifacts/charts/sales")

    assert (response.status_code, response.content) == (200, PNG)
    headers = response.headers
    assert (headers["content-type"], headers["content-length"]) == ("image/png", str(len(PNG)))
    assert (headers["etag"], headers["accept-ranges"]) == (TAG, "bytes")
    assert (headers["artifact-version"], headers["artifact-skill-id"]) == ("1", "drawing")
    assert headers["content-disposition"] == "inline; filename*=UTF-8''sales.png"
    assert api.http.get("/artifacts/charts%2Fsales").content == PNG
    assert api.http.get("/artifacts/charts/sales", headers={"If-None-Match": TAG}).status_code == 304
    assert api.http.get("/artifacts/empty").content == b""
    assert api.http.get(f"/jobs/{job['id']}").json()["steps"][0]["content"] == "Five files."


@pytest.mark.parametrize(
    ("asked", "start", "stop"),
    [
        ("bytes=0-7", 0, 8),
        ("bytes=-5", len(PNG) - 5, len(PNG)),
        (f"bytes={SLICE_BYTES - 2}-{2 * SLICE_BYTES + 1}", SLICE_BYTES - 2, 2 * SLICE_BYTES + 2),
        (f"bytes={len(PNG) - 1}-", len(PNG) - 1, len(PNG)),
    ],
)
def test_a_part_is_these_bytes_and_no_others(
    api: Api, job: dict[str, Any], asked: str, start: int, stop: int
) -> None:
    response = api.http.get("/artifacts/charts/sales", headers={"Range": asked, "If-Range": TAG})

    assert (response.status_code, response.content) == (206, PNG[start:stop])
    assert response.headers["content-range"] == f"bytes {start}-{stop - 1}/{len(PNG)}"
    assert response.headers["content-length"] == str(stop - start)
    assert (response.headers["content-type"], response.headers["etag"]) == ("image/png", TAG)


def test_what_is_no_part_of_it_is_the_whole_or_refused(api: Api, job: dict[str, Any]) -> None:
    for headers in (
        {"Range": "bytes=0-1,5-6"},
        {"Range": "lines=1-2"},
        {"Range": "bytes=0-1", "If-Range": '"older"'},
    ):
        assert api.http.get("/artifacts/charts/sales", headers=headers).content == PNG
    refused = api.http.get("/artifacts/charts/sales", headers={"Range": f"bytes={len(PNG)}-"})
    problem = problem_of(refused, 416, "range_not_satisfiable")
    assert str(len(PNG)) in problem["detail"]
    assert refused.headers["content-range"] == f"bytes */{len(PNG)}"


def test_no_browser_runs_what_a_tool_has_made(api: Api, job: dict[str, Any]) -> None:
    served = {name: api.http.get(f"/artifacts/{name}").headers for name in FILES}

    for headers in served.values():
        assert headers["x-content-type-options"] == "nosniff"
        assert "default-src 'none'; sandbox" in headers["content-security-policy"]
    disposed = {name: headers["content-disposition"].split(";")[0] for name, headers in served.items()}
    assert disposed == {name: "inline" if name == "charts/sales" else "attachment" for name in FILES}
    assert served["script"]["content-type"] == "application/octet-stream"


def test_a_job_lists_its_files_with_type_and_size(api: Api, job: dict[str, Any]) -> None:
    made = api.http.get(f"/jobs/{job['id']}/artifacts").json()["items"]

    assert {(one["skill_id"], one["skill_name"]) for one in made} == {("drawing", "Drawing by hand")}
    listed = {one["artifact_id"]: (one["bytes"], one["media_type"]) for one in made}
    assert listed == {name: (len(data), media_type) for name, (data, media_type) in FILES.items()}


def test_files_are_those_of_one_tenant(api: Api, job: dict[str, Any]) -> None:
    async def look(database: Database) -> None:
        requests = RequestStore(database)
        assert (await requests.artifact("default", "page"))["media_type"] == "text/html"
        with pytest.raises(NotFound):
            await requests.artifact("other", "page")

    api.jobs.run(look)


def test_a_part_of_what_lies_in_an_object_store_is_cut_out_of_checked_bytes(
    api: Api, job: dict[str, Any], tmp_path: Path
) -> None:
    async def look(database: Database) -> None:
        payloads = PayloadStore(database, open_objects(f"file://{tmp_path}"))
        data = PNG[::-1]
        digest = await payloads.put("default", data, b"null")
        for start, stop in ((0, 1), (5, SLICE_BYTES + 7), (len(data) - 3, len(data))):
            pieces = [piece async for piece in await payloads.open_part("default", digest, start, stop)]
            assert b"".join(pieces) == data[start:stop]

    api.jobs.run(look)
