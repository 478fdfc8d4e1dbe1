"""Several people who ask the same of a job at the same time: one of them is right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.integration.api.conftest import Api
from tests.integration.api.control import begun, call, failed_job

AT_ONCE = 12


@pytest.fixture
def api(control_api: Api) -> Api:
    return control_api


def at_once(asks: Sequence[Callable[[], httpx.Response]]) -> Counter[int]:
    with ThreadPoolExecutor(len(asks)) as pool:
        return Counter(response.status_code for response in pool.map(lambda ask: ask(), asks))


def posts(api: Api, path: str, bodies: Sequence[Any], headers: dict[str, str] | None = None) -> Counter[int]:
    return at_once([lambda body=body: api.http.post(path, json=body, headers=headers) for body in bodies])


def test_of_many_answers_to_a_question_one_counts(api: Api) -> None:
    story = begun(api, call("sign"), call("put"))
    story.ask(0)
    bodies = [{"outcome": "happened", "output": {"text": "x"}}, {"outcome": "did_not_happen"}, {"outcome": "unknown"}]

    statuses = posts(api, f"/jobs/{story.id}/steps/0/settle", bodies * (AT_ONCE // 3))

    # The first answer counts; the same one again is no error.
    assert statuses == {200: AT_ONCE // 3, 409: AT_ONCE - AT_ONCE // 3}
    told = api.jobs.execute("SELECT count(*) AS n FROM events WHERE job_id = %s AND kind = 'step_settled'", story.id)
    assert told[0]["n"] == 1


def test_many_resumes_of_a_failed_job_try_it_again_once(api: Api) -> None:
    story = failed_job(api, "tool_error")

    statuses = posts(api, f"/jobs/{story.id}/resume", [{}] * AT_ONCE)

    assert statuses == {200: AT_ONCE}
    assert api.jobs.execute("SELECT resumes FROM jobs WHERE id = %s", story.id)[0]["resumes"] == 1
    assert story.statuses() == ["succeeded", "ready", "pending"]


def test_many_forks_under_one_key_are_one(api: Api) -> None:
    story = begun(api, call("look"))

    statuses = posts(
        api, f"/jobs/{story.id}/fork", [{}] * AT_ONCE, {"Idempotency-Key": f"fork of {story.id}".replace(" ", "-")}
    )

    assert statuses == {202: AT_ONCE}
    assert api.jobs.execute("SELECT count(*) AS n FROM jobs WHERE forked_from = %s", story.id)[0]["n"] == 1


def test_pauses_resumes_and_a_cancel_at_once_leave_a_job_that_is_cancelled(api: Api) -> None:
    story = begun(api, call("look"), call("put"))
    paths = [f"/jobs/{story.id}/{what}" for what in ("pause", "resume")] * (AT_ONCE // 2) + [
        f"/jobs/{story.id}/cancel"
    ]

    statuses = at_once([lambda path=path: api.http.post(path) for path in paths])

    assert set(statuses) <= {200, 409}
    seen = story.seen()
    assert (seen["status"], seen["paused_at"], story.statuses()) == ("cancelled", None, ["cancelled"] * 2)
