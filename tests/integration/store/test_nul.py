"""The character NUL in what users, tools and models wrote: no transition takes such JSON apart."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from planq.shared.agentic.plan.document import Plan
from planq.shared.kernel.claims import StepClaim
from planq.shared.kernel.ids import StepRef
from planq.shared.kernel.job_store import ClaimRequest, FollowUp
from planq.shared.kernel.retry import StageTries
from planq.shared.kernel.states import AfterSteps, JobStatus, OnFailure, Pool
from planq.shared.platform.errors import ErrorRecord
from tests.integration.store.test_control import BOOM, Rows, play  # noqa: F401
from tests.support.claiming import claim_stage, claim_steps
from tests.support.plans import compiled

NUL = "a\x00b"
RECORDED = FollowUp(AfterSteps.PLANNING, OnFailure.RECORD)


async def taken(rows: Rows, follow: FollowUp, *calls: dict[str, Any]) -> tuple[Any, StepClaim]:
    """Accept a plan and take its first step over."""
    claim = await claim_stage(rows.store, await rows.submit(), [JobStatus.QUEUED])
    assert claim is not None
    steps = compiled(Plan.model_validate({"calls": list(calls)}))
    moved = await rows.store.accept_plan(
        claim, "model", {"calls": list(calls)}, steps, [], follow=follow, take=ClaimRequest(Pool.IO, 1)
    )
    (first,) = moved.taken
    assert isinstance(first, StepClaim)
    return claim.job_id, first


def test_what_follows_a_failure_is_taken_over_with_a_nul_in_its_arguments(play: Any) -> None:  # noqa: F811
    async def scenario(rows: Rows) -> None:
        follower = {"tool_name": "sim_read", "arguments": {"input": NUL}, "depends_on": [0]}
        _, first = await taken(rows, RECORDED, {"tool_name": "sim_read", "arguments": {}}, follower)
        moved = await rows.store.fail_step(first, BOOM, None, take=ClaimRequest(Pool.IO))
        assert moved.applied
        (second,) = moved.taken
        assert isinstance(second, StepClaim)
        assert second.arguments["input"] == NUL

    play(scenario)


def test_the_error_of_a_stage_that_is_tried_again_may_hold_a_nul(play: Any) -> None:  # noqa: F811
    async def scenario(rows: Rows) -> None:
        claim = await claim_stage(rows.store, await rows.submit(), [JobStatus.QUEUED])
        assert claim is not None
        error = ErrorRecord("transient", "away", retryable=True, details={"reply": NUL})
        tried = StageTries(1, 4, 2.0)
        assert await rows.store.retry_stage(claim, error, timedelta(0), tried, [])
        again = await claim_stage(rows.store, claim.job_id, [JobStatus.PLANNING])
        assert again is not None
        assert again.tried == tried
        assert (await rows.job(claim.job_id))[0]["stage_retry"] is not None

    play(scenario)


def test_a_note_about_a_step_may_hold_a_nul_and_is_made_once(play: Any) -> None:  # noqa: F811
    async def scenario(rows: Rows) -> None:
        job_id = await rows.executing("read", "read")
        claims = [await rows.claim(job_id, index) for index in (0, 1)]
        for claim in claims:
            assert await rows.store.note(claim, "parameter_override", {"parameters": [NUL]})
            assert not await rows.store.note(claim, "parameter_override", {"parameters": ["other"]})
        noted = await rows.run("SELECT data FROM events WHERE kind = 'parameter_override' ORDER BY sequence")
        assert [one["data"] for one in noted] == [
            {"round": 0, "index": index, "parameters": [NUL]} for index in (0, 1)
        ]

    play(scenario)


def test_a_step_with_a_nul_is_claimed_among_several(play: Any) -> None:  # noqa: F811
    async def scenario(rows: Rows) -> None:
        calls = [{"tool_name": "sim_read", "arguments": {"input": text}} for text in (NUL, "plain")]
        job_id, first = await taken(rows, RECORDED, *calls)
        assert first.arguments["input"] == NUL
        (second,) = await claim_steps(rows.store, [StepRef(job_id, 0, index) for index in (0, 1)])
        assert second.ref.index == 1

    play(scenario)
