"""A thin client of planq's HTTP API, for the command line: one method per endpoint, JSON in and out.

Refusals (problem+json) come back as the errors of `planq.shared.domain.errors`, so that the command line prints the
API's own message. Nothing is retried here: `submit` carries an idempotency key, and the caller decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import quote

import httpx

from planq.shared.domain.errors import (
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
from planq.shared.domain.streams.frames import Frame, read_frames

Json = dict[str, Any]

_LARGEST_PAGE = 100
"""The API's largest page."""

_UPLOAD_SECONDS = 300.0
"""How long the API may take for one read of a file of 200 MB and its storing."""

_SILENT_SECONDS = 45.0
"""A stream of events has a heartbeat every 15 s; after three of them its connection leads nowhere."""

_BY_STATUS: Mapping[int, type[PlanqError]] = {
    401: Unauthorized,
    404: NotFound,
    409: Conflict,
    413: TooLarge,
    422: InvalidRequest,
}


@dataclass(frozen=True, slots=True)
class Page:
    """What was found, and where there is more: the cursor of the next page."""

    items: list[Json]
    next_cursor: str | None


class Client:
    """A connection to the API at `url`; use as a context manager. Every method raises as `_send` says."""

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
        """Return a job; with `wait` seconds, as soon as it has ended or asks a person, or the time is over."""
        if wait is None:
            return self._json("GET", _job(job_id))
        return self._json("GET", _job(job_id), params={"wait": wait}, timeout=wait + self._timeout)

    def jobs(self, most: int, **params: str | None) -> Page:
        """Return jobs, newest first, at most so many.

        `params` are `status`, `strategy` and `roots` (`true`: without child jobs); None leaves one out.
        """
        return self._pages("/jobs", most, **{name: value for name, value in params.items() if value is not None})

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

    def elicitations(self, most: int, *, job: str | None = None, status: str | None = None) -> Page:
        """Return questions, newest first, at most so many: of a job and those below it, or of a status."""
        given = {"job": job, "status": status}
        named = {name: value for name, value in given.items() if value is not None}
        return self._pages("/elicitations", most, **named)

    def elicitation(self, elicitation_id: str) -> Json:
        """Return a question."""
        return self._json("GET", _at("elicitations", elicitation_id))

    def answer(self, elicitation_id: str, body: Json) -> Json:
        """Answer a question with `{action, content?, reason?, by?, channel?}`, and return it."""
        return self._json("POST", _at("elicitations", elicitation_id), json=body)

    def send_batch(
        self, lines: Iterable[bytes], size: int | None, params: Mapping[str, str], *, idempotency_key: str | None
    ) -> Json:
        """Send the pieces of a file of requests, of `size` bytes where that is known, and return the batch."""
        headers = {"Content-Type": "application/jsonl"}
        headers |= {} if size is None else {"Content-Length": str(size)}
        headers |= {} if idempotency_key is None else {"Idempotency-Key": idempotency_key}
        return self._json("POST", "/batches", content=lines, params=params, headers=headers, timeout=_UPLOAD_SECONDS)

    def batches(self, most: int) -> Page:
        """Return batches, newest first, at most so many."""
        return self._pages("/batches", most)

    def batch(self, batch_id: str) -> Json:
        """Return a batch."""
        return self._json("GET", _at("batches", batch_id))

    def ask_of_batch(self, batch_id: str, action: str, body: Json | None = None) -> Json:
        """Ask to `cancel`, `pause`, `resume` or `retry` a batch, and return it."""
        options = {} if body is None else {"json": body}
        return self._json("POST", f"{_at('batches', batch_id)}/{action}", **options)

    @contextmanager
    def batch_lines(self, batch_id: str, what: str, params: Mapping[str, str]) -> Iterator[Iterator[bytes]]:
        """Lend the `results` or `errors` of a batch, in pieces; raises `Unavailable` where they break off."""
        with self._streamed(f"{_at('batches', batch_id)}/{what}", params) as pieces:
            yield pieces

    @contextmanager
    def output(self, job_id: str, index: int) -> Iterator[Iterator[bytes]]:
        """Lend the JSON of a step's output, in pieces, of any size; raises `Unavailable` where it breaks off."""
        with self._streamed(f"{_job(job_id)}/steps/{index}/output") as pieces:
            yield pieces

    @contextmanager
    def _streamed(self, path: str, params: Mapping[str, str] | None = None) -> Iterator[Iterator[bytes]]:
        try:
            with self._http.stream("GET", path, params=params) as response:
                if not response.is_success:
                    response.read()
                    raise _refusal(response.status_code, _decoded(response), self.url)
                yield response.iter_bytes()
        except httpx.HTTPError as failure:
            raise self._unreachable(failure) from failure

    def log(self, job_id: str, *, children: bool) -> Iterator[Json]:
        """Yield the events of a job that there are now, the oldest first, a page at a time."""
        params: dict[str, Any] = {"children": children, "limit": 1_000}
        while True:
            headers = {"Accept": "application/json"}
            page = self._json("GET", f"{_job(job_id)}/events", params=params, headers=headers)
            yield from page["events"]
            if page["next"] is None:
                return
            params["after"] = page["next"]

    @contextmanager
    def events(self, job_id: str, *, after: str | None, children: bool) -> Iterator[Iterator[Frame] | None]:
        """Lend the events of a job after one of them, as they come; None where none is left and the job has ended.

        Raises `Unavailable` where the connection breaks.
        """
        params: dict[str, Any] = {"children": children}
        if after is not None:
            params["after"] = after
        try:
            path, timeout = f"{_job(job_id)}/events", httpx.Timeout(self._timeout, read=_SILENT_SECONDS)
            with self._http.stream("GET", path, params=params, timeout=timeout) as response:
                if not response.is_success:
                    response.read()
                    raise _refusal(response.status_code, _decoded(response), self.url)
                yield None if response.status_code == httpx.codes.NO_CONTENT else read_frames(response.iter_bytes())
        except httpx.HTTPError as failure:
            raise self._unreachable(failure) from failure

    def endpoints(self) -> list[Json]:
        """Return all endpoints, newest first."""
        return self._pages("/endpoints").items

    def add_endpoint(self, body: Json) -> Json:
        """Store an endpoint from `{url, events, description?}` and return it with its secret."""
        return self._json("POST", "/endpoints", json=body)

    def change_endpoint(self, endpoint_id: str, body: Json) -> Json:
        """Change what `{url?, events?, description?, is_disabled?}` names of an endpoint, and return it."""
        return self._json("PATCH", _at("endpoints", endpoint_id), json=body)

    def remove_endpoint(self, endpoint_id: str) -> None:
        """Remove an endpoint."""
        self._send("DELETE", _at("endpoints", endpoint_id))

    def rotate_endpoint(self, endpoint_id: str) -> Json:
        """Make another secret for an endpoint, and return `{secret}`."""
        return self._json("POST", f"{_at('endpoints', endpoint_id)}/rotate")

    def try_endpoint(self, endpoint_id: str) -> Json:
        """Send an endpoint a test, and return the delivery."""
        return self._json("POST", f"{_at('endpoints', endpoint_id)}/test")

    def callback_secret(self, *, rotate: bool = False) -> Json:
        """Return the `{secret}` of callbacks, with `rotate` another one."""
        if rotate:
            return self._json("POST", "/webhook-secret/rotate")
        return self._json("GET", "/webhook-secret")

    def deliveries(self, **params: str | int | None) -> Json:
        """Return one page of deliveries, newest first; `params` are `status`, `endpoint`, `job` and `limit`."""
        given = {name: value for name, value in params.items() if value is not None}
        return self._json("GET", "/deliveries", params=given)

    def redeliver(self, delivery_id: str) -> Json:
        """Send a delivery that has ended once more, and return it."""
        return self._json("POST", f"{_at('deliveries', delivery_id)}/redeliver")

    def tools(self) -> list[Json]:
        """Return the tools that workers have published."""
        items: list[Json] = self._json("GET", "/tools")["items"]
        return items

    def documents(self, kind: str) -> list[Json]:
        """Return all `agents` or `skills` in use, without their contents."""
        return self._pages(f"/{kind}").items

    def schedules(self, *, everything: bool = False) -> list[Json]:
        """Return all schedules that are to come, newest first; with `everything` also those that are over."""
        return self._pages("/schedules", None, **({"all": "true"} if everything else {})).items

    def conversations(self, most: int, *, channel: str | None = None) -> Page:
        """Return conversations, newest first, at most so many, or those of a channel."""
        return self._pages("/conversations", most, **({} if channel is None else {"channel": channel}))

    def conversation_messages(self, conversation_id: str, most: int) -> Page:
        """Return what stands in a conversation, newest first, at most so many rows."""
        return self._pages(f"{_at('conversations', conversation_id)}/messages", most)

    def delete_schedule(self, schedule_id: str) -> None:
        """Remove a schedule."""
        self._send("DELETE", _at("schedules", schedule_id))

    def agent(self, name: str, version: int | None = None) -> Json:
        """Return an agent with its document, in its newest version or another."""
        return self._json("GET", _at("agents", name), params=_version(version))

    def skill(self, name: str, version: int | None = None) -> str:
        """Return a skill's text."""
        return self._send("GET", _at("skills", name), params=_version(version)).text

    def put(self, kind: str, name: str, body: bytes, media_type: str) -> tuple[Json, bool]:
        """Store one of the `agents` or `skills`; return it, and whether that made a new version."""
        response = self._send("PUT", _at(kind, name), content=body, headers={"Content-Type": media_type})
        return self._object(response), response.status_code == httpx.codes.CREATED

    def retire(self, kind: str, name: str) -> None:
        """Take one of the `agents` or `skills` out of use."""
        self._send("DELETE", _at(kind, name))

    def validate(self, plan: Any) -> Json:
        """Return `{valid, errors}` for a plan."""
        return self._json("POST", "/plans/validate", json={"plan": plan})

    def readiness(self) -> Json:
        """Return `{status, checks}` of `/readyz`, whether planq is ready or not."""
        response = self._exchange("GET", "/readyz")
        found = _decoded(response)
        if isinstance(found, dict) and "checks" in found:
            return found
        raise _refusal(response.status_code, found, self.url)

    def _pages(self, path: str, most: int | None = None, **params: str) -> Page:
        """Return the items of all pages, or of as many as hold so many items."""
        found: list[Json] = []
        while True:
            size = _LARGEST_PAGE if most is None else min(_LARGEST_PAGE, most - len(found))
            page = self._json("GET", path, params={**params, "limit": size})
            found += page["items"]
            cursor = page.get("next_cursor")
            if cursor is None or not page["items"] or len(found) == most:
                return Page(found, cursor)
            params["cursor"] = cursor

    def _json(self, method: str, path: str, **options: Any) -> Json:
        """Send a request and return the JSON object of its answer; raises as `_send` does."""
        return self._object(self._send(method, path, **options))

    def _object(self, response: httpx.Response) -> Json:
        if isinstance(found := _decoded(response), dict):
            return found
        raise _refusal(response.status_code, found, self.url)

    def _send(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Send a request and return a good answer.

        Raises the error that another answer stands for, or `Unavailable` when nothing answers or what answers is no
        planq.
        """
        response = self._exchange(method, path, **options)
        if response.is_success:
            return response
        raise _refusal(response.status_code, _decoded(response), self.url)

    def _exchange(self, method: str, path: str, **options: Any) -> httpx.Response:
        try:
            return self._http.request(method, path, **options)
        except httpx.HTTPError as failure:
            raise self._unreachable(failure) from failure

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


def _at(kind: str, name: str) -> str:
    return f"/{kind}/{quote(name, safe='')}"


def _job(job_id: str) -> str:
    return _at("jobs", job_id)


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
