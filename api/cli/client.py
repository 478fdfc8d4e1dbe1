"""What commands ask of the API: one method per endpoint, JSON in and out, over `planq.Client`.

Nothing is retried here: a person is told at once that nothing answers, and decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any, Self
from uuid import uuid4

from planq.shared.client.blocking import Client
from planq.shared.client.exchanges import Page
from planq.shared.client.following import StreamEvent
from planq.shared.client.requests import (
    UPLOAD_SECONDS,
    MessageFields,
    answer_request,
    at,
    batch_action,
    job_action,
    job_request,
    message_request,
)
from planq.shared.client.wire import ApiReply, ApiRequest, Broken, Json, object_of, refused, unreached


class CommandClient:
    """A connection to the API at `url`; use as a context manager.

    Every method raises the error that a refusal stands for, or `Unavailable` when nothing answers or what answers is
    no planq.
    """

    def __init__(self, url: str, api_key: str | None = None, *, timeout: float = 30.0) -> None:
        """Open no connection yet; `timeout` is in seconds, for requests that do not wait by themselves."""
        self.api = Client(url, api_key, timeout=timeout, patience=0)
        self.url = self.api.url

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.api.close()

    def submit(self, body: Json, *, idempotency_key: str | None = None) -> Json:
        """Create a job from `{input, plan?, agent?, action?, with?, model?, …}` and return it."""
        return self.api.submit(idempotency_key=idempotency_key, **body).document

    def job(self, job_id: str, *, wait: float | None = None) -> Json:
        """Return a job; with `wait` seconds, as soon as it has ended or asks a person, or the time is over."""
        return self.api.document(job_request(job_id, wait or 0.0))

    def why(self, job_id: str) -> Json:
        """Return for what a job waits, with a `sentence` for people."""
        return self._json("GET", f"{at('jobs', job_id)}/why")

    def jobs(self, most: int, **params: str | None) -> Page:
        """Return jobs, newest first, at most so many.

        `params` are `status`, `strategy` and `roots` (`true`: without child jobs); None leaves one out.
        """
        return self._pages("/jobs", most, **{name: value for name, value in params.items() if value is not None})

    def find(self, id: str) -> Json:
        """Return `{items}` of what has an id of whatever kind."""
        return self._json("GET", "/search", params={"id": id})

    def cancel(self, job_id: str) -> Json:
        """Ask for a job's cancellation and return the job."""
        return self.api.document(job_action(job_id, "cancel"))

    def pause(self, job_id: str) -> Json:
        """Let nothing more of a job begin, and return it."""
        return self.api.document(job_action(job_id, "pause"))

    def resume(self, job_id: str, *, repeat_unsafe: bool = False) -> Json:
        """Let a job go on, or try again what has not succeeded, and return it."""
        return self.api.document(job_action(job_id, "resume", {"repeat_unsafe": repeat_unsafe}))

    def act(self, body: Json) -> Json:
        """Ask for `{act, filter, …}` of all jobs that fit, and return the job action; with `dry_run`, their count."""
        return self._json("POST", "/job-actions", body=body)

    def action(self, action_id: str) -> Json:
        """Return a job action."""
        return self._json("GET", at("job-actions", action_id))

    def fork(self, job_id: str, body: Json) -> Json:
        """Create a job from another with `{from_step?, plan?, …}` and return it; with `dry_run`, `{reuse, run}`."""
        return self._json("POST", f"{at('jobs', job_id)}/fork", body=body)

    def settle(self, job_id: str, index: int, body: Json) -> Json:
        """Answer the question of a step with `{outcome, output?}`, and return the job."""
        return self._json("POST", f"{at('jobs', job_id)}/steps/{index}/settle", body=body)

    def elicitations(self, most: int, *, job: str | None = None, status: str | None = None) -> Page:
        """Return questions, newest first, at most so many: of a job and those below it, or of a status."""
        given = {"job": job, "status": status}
        named = {name: value for name, value in given.items() if value is not None}
        return self._pages("/elicitations", most, **named)

    def elicitation(self, elicitation_id: str) -> Json:
        """Return a question."""
        return self._json("GET", at("elicitations", elicitation_id))

    def answer(self, elicitation_id: str, body: Json) -> Json:
        """Answer a question with `{action, content?, reason?, by?, channel?}`, and return it."""
        return self.api.document(answer_request(elicitation_id, body))

    def send_batch(
        self, lines: Iterable[bytes], size: int | None, params: Mapping[str, str], *, idempotency_key: str | None
    ) -> Json:
        """Send the pieces of a file of requests, of `size` bytes where that is known, and return the batch."""
        headers = {"Content-Type": "application/jsonl"}
        headers |= {} if size is None else {"Content-Length": str(size)}
        headers |= {} if idempotency_key is None else {"Idempotency-Key": idempotency_key}
        pieces = iter(lines)
        request = ApiRequest("POST", "/batches", params, headers, pieces=lambda: pieces, seconds=UPLOAD_SECONDS)
        return self.api.document(request)

    def batches(self, most: int) -> Page:
        """Return batches, newest first, at most so many."""
        return self._pages("/batches", most)

    def batch(self, batch_id: str) -> Json:
        """Return a batch."""
        return self._json("GET", at("batches", batch_id))

    def ask_of_batch(self, batch_id: str, action: str, body: Json | None = None) -> Json:
        """Ask to `cancel`, `pause`, `resume` or `retry` a batch, and return it."""
        return self.api.document(batch_action(batch_id, action, body))

    @contextmanager
    def batch_lines(self, batch_id: str, what: str, params: Mapping[str, str]) -> Iterator[Iterator[bytes]]:
        """Lend the `results` or `errors` of a batch, in pieces; raises `Unavailable` where they break off."""
        with self._streamed(f"{at('batches', batch_id)}/{what}", params) as pieces:
            yield pieces

    @contextmanager
    def output(self, job_id: str, index: int) -> Iterator[Iterator[bytes]]:
        """Lend the JSON of a step's output, in pieces, of any size; raises `Unavailable` where it breaks off."""
        with self._streamed(f"{at('jobs', job_id)}/steps/{index}/output") as pieces:
            yield pieces

    @contextmanager
    def artifact(self, artifact_id: str, version: int | None) -> Iterator[tuple[str, Iterator[bytes]]]:
        """Lend the media type of a version of an artifact, and its bytes in pieces; raises as `output` does."""
        params = {} if version is None else {"version": str(version)}
        with self.api.opened(ApiRequest("GET", at("artifacts", artifact_id), params)) as response:
            yield response.headers.get("content-type", ""), response.iter_bytes()

    def artifacts(self, job_id: str) -> Json:
        """Return what a job has made."""
        return self._json("GET", at("jobs", job_id) + "/artifacts")

    @contextmanager
    def _streamed(self, path: str, params: Mapping[str, str] | None = None) -> Iterator[Iterator[bytes]]:
        with self.api.opened(ApiRequest("GET", path, params or {})) as response:
            yield response.iter_bytes()

    def log(self, job_id: str, *, children: bool) -> Iterator[StreamEvent]:
        """Yield the events of a job that there are now, the oldest first, a page at a time."""
        params: dict[str, Any] = {"children": children, "limit": 1_000}
        while True:
            headers = {"Accept": "application/json"}
            page = self._json("GET", f"{at('jobs', job_id)}/events", params=dict(params), headers=headers)
            for event in page["events"]:
                data = {name: value for name, value in event.items() if name != "id"}
                yield StreamEvent(event["id"], event["kind"], data)
            if page["next"] is None:
                return
            params["after"] = page["next"]

    def events(self, job_id: str, *, children: bool) -> Iterator[StreamEvent]:
        """Yield the events of a job as `Client.stream` does."""
        return self.api.stream(job_id, children=children)

    def begin_conversation(self, body: Json) -> Json:
        """Begin a conversation from `{channel?, thread?, agent?, …}` and return it."""
        return self._json("POST", "/conversations", body=body)

    def say(self, text: str, fields: MessageFields) -> Json:
        """Store a message, and return `{status, job_id, conversation_id, …}` without waiting for its answer."""
        return self.api.document(message_request(text, fields, uuid4().hex))

    def endpoints(self) -> list[Json]:
        """Return all endpoints, newest first."""
        return self._pages("/endpoints").items

    def add_endpoint(self, body: Json) -> Json:
        """Store an endpoint from `{url, events, description?}` and return it with its secret."""
        return self._json("POST", "/endpoints", body=body)

    def change_endpoint(self, endpoint_id: str, body: Json) -> Json:
        """Change what `{url?, events?, description?, is_disabled?}` names of an endpoint, and return it."""
        return self._json("PATCH", at("endpoints", endpoint_id), body=body)

    def remove_endpoint(self, endpoint_id: str) -> None:
        """Remove an endpoint."""
        self._send("DELETE", at("endpoints", endpoint_id))

    def rotate_endpoint(self, endpoint_id: str) -> Json:
        """Make another secret for an endpoint, and return `{secret}`."""
        return self._json("POST", f"{at('endpoints', endpoint_id)}/rotate")

    def try_endpoint(self, endpoint_id: str) -> Json:
        """Send an endpoint a test, and return the delivery."""
        return self._json("POST", f"{at('endpoints', endpoint_id)}/test")

    def callback_secret(self, *, rotate: bool = False) -> Json:
        """Return the `{secret}` of callbacks, with `rotate` another one."""
        if rotate:
            return self._json("POST", "/webhook-secret/rotate")
        return self._json("GET", "/webhook-secret")

    def deliveries(self, **params: str | int | None) -> Json:
        """Return one page of deliveries, newest first; `params` are `status`, `endpoint`, `job` and `limit`."""
        given = {name: value for name, value in params.items() if value is not None}
        return self._json("GET", "/deliveries", params=given)

    def insights(self, most: int, **chosen: str) -> Page:
        """Return what jobs have taught, newest first, at most so many, as the query of `GET /insights` chooses."""
        return self._pages("/insights", most, **chosen)

    def insight(self, insight_id: str) -> Json:
        """Return an insight with the jobs that have taught it."""
        return self._json("GET", at("insights", insight_id))

    def change_insight(self, insight_id: str, body: Json) -> Json:
        """Pin or retire an insight, and return it."""
        return self._json("PATCH", at("insights", insight_id), body=body)

    def insight_report(self, days: float) -> Json:
        """Return whether insights help, of jobs of the last so many days."""
        return self._json("GET", "/insights/report", params={"days": days})

    def costs(self, **asked: str | None) -> Json:
        """Return what models have cost; `asked` are `by`, `from`, `to`, `tenant`, `agent` and `model`."""
        return self._json("GET", "/costs", params={name: value for name, value in asked.items() if value is not None})

    def tracebacks(self, job_id: str, index: int) -> Json:
        """Return where the exceptions of a step's last attempts came from, newest first."""
        return self._json("GET", f"{at('jobs', job_id)}/steps/{index}/tracebacks")

    def redeliver(self, delivery_id: str) -> Json:
        """Send a delivery that has ended once more, and return it."""
        return self._json("POST", f"{at('deliveries', delivery_id)}/redeliver")

    def tools(self) -> list[Json]:
        """Return the tools that workers have published."""
        items: list[Json] = self._json("GET", "/tools")["items"]
        return items

    def workers(self) -> list[Json]:
        """Return the workers that are alive."""
        found: list[Json] = self._json("GET", "/workers")["workers"]
        return found

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
        return self._pages(f"{at('conversations', conversation_id)}/messages", most)

    def delete_schedule(self, schedule_id: str) -> None:
        """Remove a schedule."""
        self._send("DELETE", at("schedules", schedule_id))

    def agent(self, name: str, version: int | None = None) -> Json:
        """Return an agent with its document, in its newest version or another."""
        return self._json("GET", at("agents", name), params=_version(version))

    def skill(self, name: str, version: int | None = None) -> str:
        """Return a skill's text."""
        return self._send("GET", at("skills", name), params=_version(version)).body.decode()

    def put(self, kind: str, name: str, body: bytes, media_type: str) -> tuple[Json, bool]:
        """Store one of the `agents` or `skills`; return it, and whether that made a new version."""
        reply = self._send("PUT", at(kind, name), content=body, headers={"Content-Type": media_type})
        return object_of(reply, self.api.url), reply.status == HTTPStatus.CREATED

    def retire(self, kind: str, name: str) -> None:
        """Take one of the `agents` or `skills` out of use."""
        self._send("DELETE", at(kind, name))

    def validate(self, plan: Any) -> Json:
        """Return `{valid, errors}` for a plan."""
        return self._json("POST", "/plans/validate", body={"plan": plan})

    def readiness(self) -> Json:
        """Return `{status, checks}` of `/readyz`, whether planq is ready or not."""
        reply = self.api.exchange(ApiRequest("GET", "/readyz"))
        if isinstance(reply, Broken):
            raise unreached(reply, self.api.url)
        if isinstance(found := reply.decoded, dict) and "checks" in found:
            return found
        raise refused(reply, self.api.url)

    def _pages(self, path: str, most: int | None = None, **params: str) -> Page:
        return self.api.pages(path, most, params)

    def _json(self, method: str, path: str, **options: Any) -> Json:
        return self.api.document(ApiRequest(method, path, **options))

    def _send(self, method: str, path: str, **options: Any) -> ApiReply:
        return self.api.send(ApiRequest(method, path, **options))


def _version(version: int | None) -> dict[str, int]:
    return {} if version is None else {"version": version}
