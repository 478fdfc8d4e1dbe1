"""A thin client of planq's HTTP API, for the command line: one method per endpoint, JSON in and out.

Refusals (problem+json) come back as the errors of `shared.domain.errors`, so that the command line prints the API's
own message. Nothing is retried here: `submit` carries an idempotency key, and the caller decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self
from urllib.parse import quote

import httpx

from shared.domain.errors import (
    Conflict,
    InvalidRequest,
    NotFound,
    OutcomeUnknown,
    PlanInvalid,
    PlanqError,
    TooLarge,
    Unauthorized,
    Unavailable,
)

Json = dict[str, Any]

_BY_STATUS: Mapping[int, type[PlanqError]] = {
    401: Unauthorized,
    404: NotFound,
    409: Conflict,
    413: TooLarge,
    422: InvalidRequest,
}


class Client:
    """A connection to the API at `url`; use as a context manager. Every method raises as `_json` says."""

    def __init__(self, url: str, api_key: str | None = None, *, timeout: float = 30.0) -> None:
        """Open no connection yet; `timeout` is in seconds, for requests that do not wait by themselves."""
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self.url = url.rstrip("/")
        self._timeout = timeout
        # No proxy from the environment: the API is on this machine or in this network.
        self._http = httpx.Client(base_url=self.url, headers=headers, timeout=timeout, trust_env=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def submit(self, body: Json, *, idempotency_key: str | None = None) -> Json:
        """Create a job from `{input, plan?, agent?, action?, with?, model?, …}` and return it."""
        headers = {} if idempotency_key is None else {"Idempotency-Key": idempotency_key}
        return self._json("POST", "/jobs", json=body, headers=headers)

    def job(self, job_id: str, *, wait: float | None = None) -> Json:
        """Return a job; with `wait` seconds, as soon as it has ended or the time is over."""
        if wait is None:
            return self._json("GET", _job(job_id))
        return self._json("GET", _job(job_id), params={"wait": wait}, timeout=wait + self._timeout)

    def jobs(
        self,
        *,
        status: str | None = None,
        cursor: str | None = None,
        limit: int | None = None,
        roots: bool | None = None,
    ) -> Json:
        """Return one page of jobs, newest first: `{items, next_cursor?}`; with `roots` without child jobs."""
        given = {"status": status, "cursor": cursor, "limit": limit, "roots": roots}
        return self._json("GET", "/jobs", params={name: value for name, value in given.items() if value is not None})

    def cancel(self, job_id: str) -> Json:
        """Ask for a job's cancellation and return the job."""
        return self._json("POST", f"{_job(job_id)}/cancel")

    def pause(self, job_id: str) -> Json:
        """Let nothing more of a job begin, and return it."""
        return self._json("POST", f"{_job(job_id)}/pause")

    def resume(self, job_id: str, *, repeat_unsafe: bool = False) -> Json:
        """Let a job go on, or try again what has not succeeded, and return it."""
        return self._json("POST", f"{_job(job_id)}/resume", json={"repeat_unsafe": repeat_unsafe})

    def fork(self, job_id: str, body: Json) -> Json:
        """Create a job from another with `{from_step?, plan?, …}` and return it; with `dry_run`, `{reuse, run}`."""
        return self._json("POST", f"{_job(job_id)}/fork", json=body)

    def settle(self, job_id: str, index: int, body: Json) -> Json:
        """Answer the question of a step with `{outcome, output?}`, and return the job."""
        return self._json("POST", f"{_job(job_id)}/steps/{index}/settle", json=body)

    @contextmanager
    def output(self, job_id: str, index: int) -> Iterator[Iterator[bytes]]:
        """Lend the JSON of a step's output, in pieces, of any size; raises `Unavailable` where it breaks off."""
        try:
            with self._http.stream("GET", f"{_job(job_id)}/steps/{index}/output") as response:
                if not response.is_success:
                    response.read()
                    raise _refusal(response.status_code, _decoded(response), self.url)
                yield response.iter_bytes()
        except httpx.HTTPError as failure:
            raise self._unreachable(failure) from failure

    def tools(self) -> list[Json]:
        """Return the tools that workers have published."""
        items: list[Json] = self._json("GET", "/tools")["items"]
        return items

    def documents(self, kind: str) -> list[Json]:
        """Return all `agents` or `skills` in use, without their contents."""
        found: list[Json] = []
        cursor = None
        while True:
            page = self._json("GET", f"/{kind}", params={"cursor": cursor} if cursor else {})
            found += page["items"]
            cursor = page["next_cursor"]
            if cursor is None:
                return found

    def schedules(self, *, everything: bool = False) -> list[Json]:
        """Return all schedules that are to come, newest first; with `everything` also those that are over."""
        found: list[Json] = []
        params: dict[str, Any] = {"all": "true"} if everything else {}
        while True:
            page = self._json("GET", "/schedules", params=params)
            found += page["items"]
            if page["next_cursor"] is None:
                return found
            params = {**params, "cursor": page["next_cursor"]}

    def delete_schedule(self, schedule_id: str) -> None:
        """Remove a schedule."""
        response, found = self._exchange("DELETE", f"/schedules/{quote(schedule_id, safe='')}")
        if not response.is_success:
            raise _refusal(response.status_code, found, self.url)

    def agent(self, name: str, version: int | None = None) -> Json:
        """Return an agent with its document, in its newest version or another."""
        return self._json("GET", f"/agents/{quote(name, safe='')}", params=_version(version))

    def skill(self, name: str, version: int | None = None) -> str:
        """Return a skill's text."""
        path = f"/skills/{quote(name, safe='')}"
        response, found = self._exchange("GET", path, params=_version(version))
        if response.is_success:
            return response.text
        raise _refusal(response.status_code, found, self.url)

    def put(self, kind: str, name: str, body: bytes, media_type: str) -> tuple[Json, bool]:
        """Store one of the `agents` or `skills`; return it, and whether that made a new version."""
        headers = {"Content-Type": media_type}
        response, found = self._exchange("PUT", f"/{kind}/{quote(name, safe='')}", content=body, headers=headers)
        if response.is_success and isinstance(found, dict):
            return found, response.status_code == httpx.codes.CREATED
        raise _refusal(response.status_code, found, self.url)

    def retire(self, kind: str, name: str) -> None:
        """Take one of the `agents` or `skills` out of use."""
        response, found = self._exchange("DELETE", f"/{kind}/{quote(name, safe='')}")
        if not response.is_success:
            raise _refusal(response.status_code, found, self.url)

    def validate(self, plan: Any) -> Json:
        """Return `{valid, errors}` for a plan."""
        return self._json("POST", "/plans/validate", json={"plan": plan})

    def readiness(self) -> Json:
        """Return `{status, checks}` of `/readyz`, whether planq is ready or not."""
        response, found = self._exchange("GET", "/readyz")
        if isinstance(found, dict) and "checks" in found:
            return found
        raise _refusal(response.status_code, found, self.url)

    def _json(self, method: str, path: str, **options: Any) -> Json:
        """Send a request and return the JSON object of a good answer.

        Raises the error that the API's answer stands for, or `Unavailable` when nothing answers or what answers is no
        planq.
        """
        response, found = self._exchange(method, path, **options)
        if response.is_success and isinstance(found, dict):
            return found
        raise _refusal(response.status_code, found, self.url)

    def _exchange(self, method: str, path: str, **options: Any) -> tuple[httpx.Response, Any]:
        """Send a request and return the answer and its JSON, None when it has none."""
        try:
            response = self._http.request(method, path, **options)
        except httpx.HTTPError as failure:
            raise self._unreachable(failure) from failure
        return response, _decoded(response)

    def _unreachable(self, failure: httpx.HTTPError) -> Unavailable:
        return Unavailable(
            f"no planq API answers at {self.url} ({failure}). Start one with `planq up`, or name another with "
            "--url or PLANQ_URL."
        )


def _decoded(response: httpx.Response) -> Any:
    try:
        return response.json()
    except (ValueError, RecursionError):
        return None


def _version(version: int | None) -> dict[str, int]:
    return {} if version is None else {"version": version}


def _job(job_id: str) -> str:
    return f"/jobs/{quote(job_id, safe='')}"


def _refusal(status: int, problem: Any, url: str) -> PlanqError:
    """Return the error that a problem document (RFC 9457) stands for; its title goes into the details."""
    if not isinstance(problem, dict):
        return Unavailable(f"expected JSON from a planq API at {url}, found something else (status {status})")
    message = str(problem.get("detail") or problem.get("title") or f"status {status}")
    title = {"title": problem["title"]} if problem.get("title") and problem.get("detail") else {}
    errors = problem.get("errors")
    if problem.get("code") == PlanInvalid.code and isinstance(errors, list):
        invalid = PlanInvalid(message, errors)
        invalid.details.update(title)
        return invalid
    if problem.get("code") == OutcomeUnknown.code:
        return OutcomeUnknown(message, **title, errors=errors)
    kind = _BY_STATUS.get(status, Unavailable if status >= 500 else InvalidRequest)
    return kind(message, **title, errors=errors) if isinstance(errors, list) else kind(message, **title)
