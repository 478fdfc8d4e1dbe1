"""`Client` and `AsyncClient`: carry the exchanges out over httpx, in the calling thread or on an event loop."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Self, TypeVar, Unpack

import httpx

from planq.shared.client import requests
from planq.shared.client.exchanges import Exchange, Exchanges, Page, PauseRequest
from planq.shared.client.facts import BatchFacts, JobFacts, api_url, is_unsent, large_output, result_of, verified
from planq.shared.client.following import (
    PAUSE_SECONDS,
    SILENT_SECONDS,
    Download,
    EventFollower,
    OutputDownload,
    StreamEvent,
    StreamPatience,
)
from planq.shared.client.requests import MAX_RESULT_BYTES, BatchFields, JobFields, MessageFields
from planq.shared.client.wire import ApiReply, ApiRequest, ConnectionFailure, Json, refused, unreached
from planq.shared.platform.errors import Unavailable

T = TypeVar("T")


class _Connection:
    """The parts that both clients share: the address of the API, the times, and how a request goes to httpx."""

    def __init__(self, url: str | None, api_key: str | None, timeout: float, patience: float) -> None:
        key = api_key or os.environ.get("PLANQ_API_KEY")
        self.url = (url or api_url()).rstrip("/")
        self.exchanges = Exchanges(self.url, patience)
        self._timeout = timeout
        # No proxy from the environment: the API is on this machine or in this network.
        self._options: dict[str, Any] = {"base_url": self.url, "timeout": timeout, "trust_env": False}
        if key:
            self._options["headers"] = {"Authorization": f"Bearer {key}"}

    webhook = staticmethod(verified)

    def patience(self) -> StreamPatience:
        """Return for how long a stream that begins now reconnects."""
        return StreamPatience(self.exchanges.clock, self.exchanges.patience)

    def _arguments(self, request: ApiRequest, content: Any) -> dict[str, Any]:
        seconds = self._timeout + request.seconds
        return {**_head(request), "json": request.body, "content": content, "timeout": seconds}


def _head(request: ApiRequest) -> dict[str, Any]:
    return {"method": request.method, "url": request.path, "params": request.params, "headers": request.headers}


class Client(_Connection):
    """A connection to a planq API. Use it as a context manager, or `close` it; threads may share it.

    A request that did not reach the API, that the API wants later, or that is harmless to repeat is retried for
    `patience` seconds, as during a restart of the API; a request that creates something has an idempotency key. All
    methods raise `PlanqError`: the error that a refusal stands for, or `Unavailable` if no API answers.
    """

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        timeout: float = 30.0,
        patience: float = 60.0,
        transport: httpx.BaseTransport | None = None,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """Open no connection yet. Without `url` and `api_key` they are PLANQ_URL and PLANQ_API_KEY.

        `timeout` is in seconds, for requests that do not wait by themselves; `transport` takes the place of sockets.
        """
        super().__init__(url, api_key, timeout, patience)
        self._pause = pause
        self._http = httpx.Client(transport=transport, **self._options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def submit(
        self, input: str | None = None, *, idempotency_key: str | None = None, **fields: Unpack[JobFields]
    ) -> JobHandle:
        """Submit a job and return it as it stands; the same key and fields give the same job."""
        return JobHandle(self, self.document(requests.submission(input, fields, idempotency_key)))

    def job(self, job_id: str) -> JobHandle:
        """Return a job; raises `NotFound`."""
        return JobHandle(self, self.document(requests.job_request(job_id)))

    def jobs(self, most: int | None = None, **params: str) -> list[Json]:
        """Return jobs, newest first and without their steps; `params` are `status`, `strategy` and `roots`."""
        return self.pages("/jobs", most, params).items

    def questions(self, job_id: str | None = None) -> list[Json]:
        """Return the questions that are open, newest first: of a job and those below it, or all."""
        about = {} if job_id is None else {"job": job_id}
        return self.pages("/elicitations", None, {"status": "open", **about}).items

    def answer(
        self,
        question_id: str,
        content: Mapping[str, Any] | None = None,
        *,
        action: str = "accept",
        reason: str | None = None,
        by: str | None = None,
    ) -> Json:
        """Answer a question (`accept`, `decline` or `cancel`) and return it.

        Raises `Conflict` where it has an answer, `InvalidRequest` where the content breaks its schema.
        """
        body = requests.answer_body(action, content, reason, by)
        return self.run(self.exchanges.answered(question_id, body))

    def send_message(
        self,
        text: str,
        *,
        timeout: float | None = None,
        idempotency_key: str | None = None,
        **fields: Unpack[MessageFields],
    ) -> Json:
        """Send a message to a conversation, and return its reply, or `{status: input_required, elicitation}`.

        Raises `TimeoutError` after so many seconds; the message is worked on all the same.
        """
        stored = self.document(requests.message_request(text, fields, idempotency_key))
        return self.run(self.exchanges.replied(stored["job_id"], timeout))

    def submit_batch(
        self,
        lines: str | os.PathLike[str] | Iterable[Mapping[str, Any]],
        *,
        idempotency_key: str | None = None,
        **fields: Unpack[BatchFields],
    ) -> BatchHandle:
        """Send a file of requests, or its lines, each `{custom_id, body}`, and return the batch."""
        return BatchHandle(self, self.document(requests.upload_request(lines, fields, idempotency_key)))

    def batch(self, batch_id: str) -> BatchHandle:
        """Return a batch; raises `NotFound`."""
        look = ApiRequest("GET", requests.at("batches", batch_id), is_repeatable=True)
        return BatchHandle(self, self.document(look))

    def stream(self, job_id: str, *, children: bool = False) -> Iterator[StreamEvent]:
        """Yield the events of a job, each once, over connections that break; last, as `job`, the job as it has ended.

        When nothing answers any more, it raises only after two minutes.
        """
        following = EventFollower(job_id, self.patience(), with_children=children)
        while not following.is_over:
            try:
                with self.opened(following.request(), silence=SILENT_SECONDS) as response:
                    following.patience.heard()
                    if response.status_code == httpx.codes.NO_CONTENT:
                        yield following.ended(self.document(requests.job_request(job_id)))
                        return
                    for chunk in response.iter_bytes():
                        yield from following.read(chunk)
                if not following.is_over:  # a process that stops ends its streams
                    self._pause(PAUSE_SECONDS)
            except Unavailable as failure:
                self._pause(following.patience.broke(failure))

    def lines(self, path: str, params: Mapping[str, Any]) -> Iterator[Json]:
        """Yield the lines of a batch at a path, each once, over connections that break."""
        download = Download(path, params, self.patience())
        while True:
            try:
                with self.opened(download.request()) as response:
                    for chunk in response.iter_bytes():
                        yield from download.read(chunk)
                return
            except Unavailable as failure:
                self._pause(download.patience.broke(failure))

    def output(self, job_id: str, step: int, max_bytes: int, size: int = 0) -> Any:
        """Return a step's output over connections that break; raises `TooLarge` above `max_bytes`."""
        download = OutputDownload(job_id, step, max_bytes, self.patience(), size)
        while True:
            try:
                with self.opened(download.request()) as response:
                    for chunk in response.iter_bytes():
                        download.read(chunk)
                return download.value()
            except Unavailable as failure:
                self._pause(download.patience.broke(failure))

    def with_output(self, job: Json, max_bytes: int) -> Json:
        """Return a job's document with the large output that it refers to; raises `TooLarge` above `max_bytes`."""
        if (large := large_output(job)) is None:
            return job
        step, size = large
        return {**job, "output": self.output(job["id"], step, max_bytes, size)}

    def document(self, request: ApiRequest) -> Json:
        """Send a request, and again where that helps; return the JSON object of a good reply."""
        return self.run(self.exchanges.document(request))

    def send(self, request: ApiRequest) -> ApiReply:
        """Send a request, and again where that helps; return a good reply."""
        return self.run(self.exchanges.send(request))

    def pages(self, path: str, most: int | None, params: Mapping[str, Any]) -> Page:
        """Return the items of all pages at a path, or of as many as hold so many items."""
        return self.run(self.exchanges.pages(path, most, params))

    def run(self, exchange: Exchange[T]) -> T:
        """Carry an exchange out to its end."""
        came: ApiReply | ConnectionFailure | None = None
        while True:
            try:
                wish = exchange.send(came)
            except StopIteration as ended:
                found: T = ended.value
                return found
            if isinstance(wish, PauseRequest):
                self._pause(wish.seconds)
                came = None
            else:
                came = self.exchange(wish)

    def exchange(self, request: ApiRequest) -> ApiReply | ConnectionFailure:
        """Send a request once, and return its reply, whatever it says."""
        content = request.content if request.pieces is None else request.pieces()
        try:
            response = self._http.request(**self._arguments(request, content))
        except httpx.HTTPError as failure:
            return ConnectionFailure(failure, was_sent=not is_unsent(failure))
        return ApiReply(response.status_code, response.headers, response.content)

    @contextmanager
    def opened(self, request: ApiRequest, *, silence: float | None = None) -> Iterator[httpx.Response]:
        """Lend a good reply that is read as it comes; raises `Unavailable` where it breaks off, or is silent."""
        timeout = httpx.Timeout(self._timeout, read=silence or self._timeout)
        try:
            with self._http.stream(**_head(request), timeout=timeout) as response:
                if not response.is_success:
                    body = response.read()
                    raise refused(ApiReply(response.status_code, response.headers, body), self.url)
                yield response
        except httpx.HTTPError as failure:
            raise unreached(ConnectionFailure(failure, was_sent=True), self.url) from failure


class JobHandle(JobFacts[Client]):
    """A job of the API, as it stood when it was last looked at."""

    def refresh(self) -> Self:
        """Look at the job anew."""
        return self._now(self._client.document(requests.job_request(self.id)))

    def wait(self, timeout: float | None = None) -> Self:
        """Wait until the job has ended or asks a person; raises `TimeoutError` after so many seconds."""
        return self._now(self._client.run(self._client.exchanges.ended(self.id, timeout, or_asks=True)))

    def result(self, timeout: float | None = None, *, max_bytes: int = MAX_RESULT_BYTES) -> Any:
        """Wait for the job's end and return its output, or its answer where it has none.

        A large output is loaded, up to `max_bytes`: it has the same type at every size. Raises `JobFailed`,
        `JobCancelled`, `JobPartial`, each with the steps; `TimeoutError` after so many seconds, and `TooLarge`.
        """
        self._now(self._client.run(self._client.exchanges.ended(self.id, timeout)))
        return result_of(self._client.with_output(self.document, max_bytes))

    def stream(self, *, children: bool = False) -> Iterator[StreamEvent]:
        """Yield the job's events as `Client.stream` does."""
        for event in self._client.stream(self.id, children=children):
            if event.kind == "job":
                self._now(event.data)
            yield event

    def questions(self) -> list[Json]:
        """Return what the job and those below it ask people now."""
        return self._client.questions(self.id)

    def output(self, step: int, *, max_bytes: int = MAX_RESULT_BYTES) -> Any:
        """Return a step's output; raises `NotFound` where it has none, `TooLarge` above `max_bytes`."""
        return self._client.output(self.id, step, max_bytes)

    def cancel(self) -> Self:
        """Cancel the job; raises `Conflict` where it has ended otherwise."""
        return self._now(self._client.document(requests.action("jobs", self.id, "cancel")))

    def pause(self) -> Self:
        """Let nothing more of the job begin."""
        return self._now(self._client.document(requests.action("jobs", self.id, "pause")))

    def resume(self, *, repeat_unsafe: bool = False) -> Self:
        """Let the job go on, or try again what has not succeeded."""
        body = {"repeat_unsafe": repeat_unsafe}
        return self._now(self._client.document(requests.action("jobs", self.id, "resume", body)))


class BatchHandle(BatchFacts[Client]):
    """A batch of the API, as it stood when it was last looked at."""

    def wait(self, timeout: float | None = None) -> Self:
        """Wait until the batch has ended, or is paused and nothing of it runs; raises `TimeoutError`."""
        return self._now(self._client.run(self._client.exchanges.ended_batch(self.id, timeout)))

    def results(self, *, max_bytes: int = MAX_RESULT_BYTES, **params: str) -> Iterator[Json]:
        """Yield a line for each that has ended; `params` are `order` (`input`, `completion`) and `status`.

        The job of a line has its output at every size; raises `TooLarge` where that is above `max_bytes`.
        """
        for line in self._client.lines(f"{requests.at('batches', self.id)}/results", params):
            if response := line["response"]:
                response["body"] = self._client.with_output(response["body"], max_bytes)
            yield line

    def errors(self) -> Iterator[Json]:
        """Yield a line for each that is invalid or whose job has failed."""
        return self._client.lines(f"{requests.at('batches', self.id)}/errors", {})

    def cancel(self) -> Self:
        """Begin nothing more, and cancel what runs."""
        return self._now(self._client.document(requests.action("batches", self.id, "cancel")))

    def pause(self) -> Self:
        """Begin nothing more; what runs goes on to its end."""
        return self._now(self._client.document(requests.action("batches", self.id, "pause")))

    def resume(self, **limits: float) -> Self:
        """Let the batch go on, also with a larger `max_cost_usd` or `max_tokens`."""
        return self._now(self._client.document(requests.action("batches", self.id, "resume", limits)))

    def retry(self) -> Self:
        """Make new jobs of the lines that have failed."""
        return self._now(self._client.document(requests.action("batches", self.id, "retry")))


class AsyncClient(_Connection):
    """A connection to a planq API. Use it as `async with`, or `close` it; on one event loop.

    Its methods are those of `Client`, retry as those do, and raise the same errors.
    """

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        timeout: float = 30.0,
        patience: float = 60.0,
        transport: httpx.AsyncBaseTransport | None = None,
        pause: Callable[[float], Awaitable[Any]] = asyncio.sleep,
    ) -> None:
        """Open no connection yet. Without `url` and `api_key` they are PLANQ_URL and PLANQ_API_KEY.

        `timeout` is in seconds, for requests that do not wait by themselves; `transport` takes the place of sockets.
        """
        super().__init__(url, api_key, timeout, patience)
        self._pause = pause
        self._http = httpx.AsyncClient(transport=transport, **self._options)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def submit(
        self, input: str | None = None, *, idempotency_key: str | None = None, **fields: Unpack[JobFields]
    ) -> AsyncJobHandle:
        """Submit a job and return it as it stands; the same key and fields give the same job."""
        return AsyncJobHandle(self, await self.document(requests.submission(input, fields, idempotency_key)))

    async def job(self, job_id: str) -> AsyncJobHandle:
        """Return a job; raises `NotFound`."""
        return AsyncJobHandle(self, await self.document(requests.job_request(job_id)))

    async def jobs(self, most: int | None = None, **params: str) -> list[Json]:
        """Return jobs, newest first and without their steps; `params` are `status`, `strategy` and `roots`."""
        return (await self.pages("/jobs", most, params)).items

    async def questions(self, job_id: str | None = None) -> list[Json]:
        """Return the questions that are open, newest first: of a job and those below it, or all."""
        about = {} if job_id is None else {"job": job_id}
        return (await self.pages("/elicitations", None, {"status": "open", **about})).items

    async def answer(
        self,
        question_id: str,
        content: Mapping[str, Any] | None = None,
        *,
        action: str = "accept",
        reason: str | None = None,
        by: str | None = None,
    ) -> Json:
        """Answer a question (`accept`, `decline` or `cancel`) and return it.

        Raises `Conflict` where it has an answer, `InvalidRequest` where the content breaks its schema.
        """
        body = requests.answer_body(action, content, reason, by)
        return await self.run(self.exchanges.answered(question_id, body))

    async def send_message(
        self,
        text: str,
        *,
        timeout: float | None = None,
        idempotency_key: str | None = None,
        **fields: Unpack[MessageFields],
    ) -> Json:
        """Send a message to a conversation, and return its reply, or `{status: input_required, elicitation}`.

        Raises `TimeoutError` after so many seconds; the message is worked on all the same.
        """
        stored = await self.document(requests.message_request(text, fields, idempotency_key))
        return await self.run(self.exchanges.replied(stored["job_id"], timeout))

    async def submit_batch(
        self,
        lines: str | os.PathLike[str] | Iterable[Mapping[str, Any]],
        *,
        idempotency_key: str | None = None,
        **fields: Unpack[BatchFields],
    ) -> AsyncBatchHandle:
        """Send a file of requests, or its lines, each `{custom_id, body}`, and return the batch."""
        return AsyncBatchHandle(self, await self.document(requests.upload_request(lines, fields, idempotency_key)))

    async def batch(self, batch_id: str) -> AsyncBatchHandle:
        """Return a batch; raises `NotFound`."""
        look = ApiRequest("GET", requests.at("batches", batch_id), is_repeatable=True)
        return AsyncBatchHandle(self, await self.document(look))

    async def stream(self, job_id: str, *, children: bool = False) -> AsyncIterator[StreamEvent]:
        """Yield the events of a job, each once, over connections that break; last, as `job`, the job as it has ended.

        When nothing answers any more, it raises only after two minutes.
        """
        following = EventFollower(job_id, self.patience(), with_children=children)
        while not following.is_over:
            try:
                async with self.opened(following.request(), silence=SILENT_SECONDS) as response:
                    following.patience.heard()
                    if response.status_code == httpx.codes.NO_CONTENT:
                        yield following.ended(await self.document(requests.job_request(job_id)))
                        return
                    async for chunk in response.aiter_bytes():
                        for event in following.read(chunk):
                            yield event
                if not following.is_over:  # a process that stops ends its streams
                    await self._pause(PAUSE_SECONDS)
            except Unavailable as failure:
                await self._pause(following.patience.broke(failure))

    async def lines(self, path: str, params: Mapping[str, Any]) -> AsyncIterator[Json]:
        """Yield the lines of a batch at a path, each once, over connections that break."""
        download = Download(path, params, self.patience())
        while True:
            try:
                async with self.opened(download.request()) as response:
                    async for chunk in response.aiter_bytes():
                        for line in download.read(chunk):
                            yield line
                return
            except Unavailable as failure:
                await self._pause(download.patience.broke(failure))

    async def output(self, job_id: str, step: int, max_bytes: int, size: int = 0) -> Any:
        """Return a step's output over connections that break; raises `TooLarge` above `max_bytes`."""
        download = OutputDownload(job_id, step, max_bytes, self.patience(), size)
        while True:
            try:
                async with self.opened(download.request()) as response:
                    async for chunk in response.aiter_bytes():
                        download.read(chunk)
                return download.value()
            except Unavailable as failure:
                await self._pause(download.patience.broke(failure))

    async def with_output(self, job: Json, max_bytes: int) -> Json:
        """Return a job's document with the large output that it refers to; raises `TooLarge` above `max_bytes`."""
        if (large := large_output(job)) is None:
            return job
        step, size = large
        return {**job, "output": await self.output(job["id"], step, max_bytes, size)}

    async def document(self, request: ApiRequest) -> Json:
        """Send a request, and again where that helps; return the JSON object of a good reply."""
        return await self.run(self.exchanges.document(request))

    async def send(self, request: ApiRequest) -> ApiReply:
        """Send a request, and again where that helps; return a good reply."""
        return await self.run(self.exchanges.send(request))

    async def pages(self, path: str, most: int | None, params: Mapping[str, Any]) -> Page:
        """Return the items of all pages at a path, or of as many as hold so many items."""
        return await self.run(self.exchanges.pages(path, most, params))

    async def run(self, exchange: Exchange[T]) -> T:
        """Carry an exchange out to its end."""
        came: ApiReply | ConnectionFailure | None = None
        while True:
            try:
                wish = exchange.send(came)
            except StopIteration as ended:
                found: T = ended.value
                return found
            if isinstance(wish, PauseRequest):
                await self._pause(wish.seconds)
                came = None
            else:
                came = await self.exchange(wish)

    async def exchange(self, request: ApiRequest) -> ApiReply | ConnectionFailure:
        """Send a request once, and return its reply, whatever it says."""
        content = request.content if request.pieces is None else _in_steps(request.pieces())
        try:
            response = await self._http.request(**self._arguments(request, content))
        except httpx.HTTPError as failure:
            return ConnectionFailure(failure, was_sent=not is_unsent(failure))
        return ApiReply(response.status_code, response.headers, response.content)

    @asynccontextmanager
    async def opened(self, request: ApiRequest, *, silence: float | None = None) -> AsyncIterator[httpx.Response]:
        """Lend a good reply that is read as it comes; raises `Unavailable` where it breaks off, or is silent."""
        timeout = httpx.Timeout(self._timeout, read=silence or self._timeout)
        try:
            async with self._http.stream(**_head(request), timeout=timeout) as response:
                if not response.is_success:
                    body = await response.aread()
                    raise refused(ApiReply(response.status_code, response.headers, body), self.url)
                yield response
        except httpx.HTTPError as failure:
            raise unreached(ConnectionFailure(failure, was_sent=True), self.url) from failure


async def _in_steps(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


class AsyncJobHandle(JobFacts[AsyncClient]):
    """A job of the API, as it stood when it was last looked at."""

    async def refresh(self) -> Self:
        """Look at the job anew."""
        return self._now(await self._client.document(requests.job_request(self.id)))

    async def wait(self, timeout: float | None = None) -> Self:
        """Wait until the job has ended or asks a person; raises `TimeoutError` after so many seconds."""
        return self._now(await self._client.run(self._client.exchanges.ended(self.id, timeout, or_asks=True)))

    async def result(self, timeout: float | None = None, *, max_bytes: int = MAX_RESULT_BYTES) -> Any:
        """Wait for the job's end and return its output, or its answer where it has none.

        A large output is loaded, up to `max_bytes`: it has the same type at every size. Raises `JobFailed`,
        `JobCancelled`, `JobPartial`, each with the steps; `TimeoutError` after so many seconds, and `TooLarge`.
        """
        self._now(await self._client.run(self._client.exchanges.ended(self.id, timeout)))
        return result_of(await self._client.with_output(self.document, max_bytes))

    async def stream(self, *, children: bool = False) -> AsyncIterator[StreamEvent]:
        """Yield the job's events as `AsyncClient.stream` does."""
        async for event in self._client.stream(self.id, children=children):
            if event.kind == "job":
                self._now(event.data)
            yield event

    async def questions(self) -> list[Json]:
        """Return what the job and those below it ask people now."""
        return await self._client.questions(self.id)

    async def output(self, step: int, *, max_bytes: int = MAX_RESULT_BYTES) -> Any:
        """Return a step's output; raises `NotFound` where it has none, `TooLarge` above `max_bytes`."""
        return await self._client.output(self.id, step, max_bytes)

    async def cancel(self) -> Self:
        """Cancel the job; raises `Conflict` where it has ended otherwise."""
        return self._now(await self._client.document(requests.action("jobs", self.id, "cancel")))

    async def pause(self) -> Self:
        """Let nothing more of the job begin."""
        return self._now(await self._client.document(requests.action("jobs", self.id, "pause")))

    async def resume(self, *, repeat_unsafe: bool = False) -> Self:
        """Let the job go on, or try again what has not succeeded."""
        body = {"repeat_unsafe": repeat_unsafe}
        return self._now(await self._client.document(requests.action("jobs", self.id, "resume", body)))


class AsyncBatchHandle(BatchFacts[AsyncClient]):
    """A batch of the API, as it stood when it was last looked at."""

    async def wait(self, timeout: float | None = None) -> Self:
        """Wait until the batch has ended, or is paused and nothing of it runs; raises `TimeoutError`."""
        return self._now(await self._client.run(self._client.exchanges.ended_batch(self.id, timeout)))

    async def results(self, *, max_bytes: int = MAX_RESULT_BYTES, **params: str) -> AsyncIterator[Json]:
        """Yield a line for each that has ended; `params` are `order` (`input`, `completion`) and `status`.

        The job of a line has its output at every size; raises `TooLarge` where that is above `max_bytes`.
        """
        async for line in self._client.lines(f"{requests.at('batches', self.id)}/results", params):
            if response := line["response"]:
                response["body"] = await self._client.with_output(response["body"], max_bytes)
            yield line

    def errors(self) -> AsyncIterator[Json]:
        """Yield a line for each that is invalid or whose job has failed."""
        return self._client.lines(f"{requests.at('batches', self.id)}/errors", {})

    async def cancel(self) -> Self:
        """Begin nothing more, and cancel what runs."""
        return self._now(await self._client.document(requests.action("batches", self.id, "cancel")))

    async def pause(self) -> Self:
        """Begin nothing more; what runs goes on to its end."""
        return self._now(await self._client.document(requests.action("batches", self.id, "pause")))

    async def resume(self, **limits: float) -> Self:
        """Let the batch go on, also with a larger `max_cost_usd` or `max_tokens`."""
        return self._now(await self._client.document(requests.action("batches", self.id, "resume", limits)))

    async def retry(self) -> Self:
        """Make new jobs of the lines that have failed."""
        return self._now(await self._client.document(requests.action("batches", self.id, "retry")))
