"""Artifacts in the store: every output under one id is a version of it, and a step may keep one beside its output."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from planq.shared.agentic.plan.document import Plan
from planq.shared.kernel.claims import StepClaim
from planq.shared.kernel.job_store import ArtifactRecord, ClaimRequest
from planq.shared.kernel.states import JobStatus, Pool
from planq.shared.platform.errors import NotFound
from planq.shared.platform.values.encoding import JsonText, encode
from tests.integration.store.test_control import Rows, play  # noqa: F401
from tests.support.claiming import claim_stage
from tests.support.plans import compiled

IO = ClaimRequest(Pool.IO)
REPORT = ArtifactRecord("report", "writing", "text", {"user_id": "ada", "x": "\x00"})


def calls_of(length: int, *, beside: int = 0) -> list[dict[str, Any]]:
    """A chain, and steps beside it that the plan lists before it."""
    chain = [
        {"tool_name": "sim_pure", "arguments": {"inputs": [f"${beside + n - 1}.output.value"]} if n else {}}
        for n in range(length)
    ]
    return [*[{"tool_name": "sim_pure", "arguments": {}} for _ in range(beside)], *chain]


def text(n: int) -> JsonText:
    return JsonText(encode({"value": f"v{n} \x00 é"}))


async def begun(rows: Rows, calls: Sequence[dict[str, Any]], first: int = 0) -> tuple[StepClaim, Any]:
    """Accept a plan and claim its step `first`."""
    stage = await claim_stage(rows.store, await rows.submit(), [JobStatus.QUEUED])
    assert stage is not None
    steps = compiled(Plan.model_validate({"calls": list(calls)}))
    assert (await rows.store.accept_plan(stage, "model", {}, steps, [])).applied
    claim = await rows.claim(stage.job_id, first)
    assert isinstance(claim, StepClaim)
    return claim, stage.job_id


async def versions(rows: Rows, artifact_id: str) -> list[tuple[int, str]]:
    found = await rows.run(
        "SELECT version, body::text AS body FROM artifacts WHERE id = %s ORDER BY version", artifact_id
    )
    return [(row["version"], row["body"]) for row in found]


def test_each_output_under_an_id_is_a_version_whichever_step_and_job_it_is_of(play: Any) -> None:  # noqa: F811
    async def scenario(rows: Rows) -> None:
        first, job_id = await begun(rows, calls_of(3))
        (following,) = (await rows.store.succeed_step(first, text(0), REPORT, take=IO)).taken
        assert isinstance(following, StepClaim)
        await rows.store.succeed_step(following, text(1), REPORT, take=IO)
        other, other_job = await begun(rows, calls_of(1))
        await rows.store.succeed_step(other, text(2), REPORT, take=IO)

        assert await versions(rows, "report") == [(n + 1, text(n).body.decode()) for n in range(3)]
        newest = await rows.requests.artifact("default", "report")
        assert (newest["version"], newest["skill_id"], newest["body"]) == (3, "writing", text(2).body.decode())
        assert (await rows.requests.artifact("default", "report", 1))["body"] == text(0).body.decode()
        with pytest.raises(NotFound, match="no version 4"):
            await rows.requests.artifact("default", "report", 4)
        made = await rows.requests.artifacts("default", job_id)
        assert [(one["version"], one["step_index"], one["metadata"]["user_id"]) for one in made] == [
            (1, 0, "ada"),
            (2, 1, "ada"),
        ]
        assert [one["version"] for one in await rows.requests.artifacts("default", other_job)] == [3]

    play(scenario)


def test_outputs_of_one_moment_lose_no_version(play: Any) -> None:  # noqa: F811
    async def scenario(rows: Rows) -> None:
        claims = [(await begun(rows, calls_of(1)))[0] for _ in range(8)]
        moved = await asyncio.gather(
            *(rows.store.succeed_step(claim, text(n), REPORT, take=IO) for n, claim in enumerate(claims))
        )

        assert all(one.applied for one in moved)
        found = await versions(rows, "report")
        assert [version for version, _ in found] == list(range(1, 9))
        assert {body for _, body in found} == {text(n).body.decode() for n in range(8)}

    play(scenario)


def test_what_stands_beside_an_output_is_an_artifact_of_its_step(play: Any) -> None:  # noqa: F811
    async def scenario(rows: Rows) -> None:
        body = JsonText(b'{"artifact_id":"b","artifact":{"t":"\\u0000"},"_metadata":{}}')
        beside = [ArtifactRecord(name, None, "mcp_content", {}, body=body) for name in "bc"]
        claim, job_id = await begun(rows, calls_of(1))
        await rows.store.succeed_step(claim, text(0), ArtifactRecord(None, None, None, beside=beside), take=IO)

        assert await versions(rows, "b") == await versions(rows, "c") == [(1, body.body.decode())]
        made = await rows.requests.artifacts("default", job_id)
        assert [(one["id"], one["step_index"], one["type"]) for one in made] == [
            ("b", 0, "mcp_content"),
            ("c", 0, "mcp_content"),
        ]

    play(scenario)


def test_a_job_without_artifacts_has_none_and_no_job_is_not_found(play: Any) -> None:  # noqa: F811
    async def scenario(rows: Rows) -> None:
        _, job_id = await begun(rows, calls_of(1))
        assert await rows.requests.artifacts("default", job_id) == []
        with pytest.raises(NotFound):
            await rows.requests.artifacts("other", job_id)

    play(scenario)
