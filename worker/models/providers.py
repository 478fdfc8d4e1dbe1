"""Calls of providers' models through pydantic-ai's `direct` API (2.68), and the reading of their replies.

Importing this module loads an SDK; only the gateway does so, at the first call that needs one.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import cast
from urllib.parse import urlsplit

from pydantic_ai.direct import model_request, model_request_stream
from pydantic_ai.exceptions import ModelAPIError, ModelHTTPError, UserError
from pydantic_ai.models import Model
from pydantic_ai.models.batch import BatchRequest, BatchResult, BatchResultStatus
from pydantic_ai.settings import ModelSettings as WireSettings

from planq.shared.agentic.models.adaptations import Adaptation, adaptation_for
from planq.shared.agentic.models.call_settings import settings_of
from planq.shared.agentic.models.names import ModelName, Provider
from planq.shared.kernel.deferral import CallDeferred, CallStatus, Deferral, DeferredCall
from planq.shared.platform.errors import ProviderBatchFailed, UnreadableReply
from planq.shared.platform.redact import redacted, without_key
from planq.worker.models.adapting import KnownAdaptations
from planq.worker.models.clients import Models
from planq.worker.models.completion import BrokenTryUsage, Completion
from planq.worker.models.constrained import RefusedSchemas, constrained, is_about_parameter, refuses_schema
from planq.worker.models.http_client import closing_replies
from planq.worker.models.live import LiveCall
from planq.worker.models.messages import readable
from planq.worker.models.provider_batches import can_batch
from planq.worker.models.provider_errors import FOREIGN, translated
from planq.worker.models.replies import LiveReader, answer_of_turn, check_is_whole, completion_of, partial_of
from planq.worker.models.request import ModelRequest
from planq.worker.models.settings import ModelSettings
from planq.worker.models.wire import Wire, wire_of

_log = logging.getLogger("planq.llm")


@dataclass(frozen=True, slots=True)
class _Call:
    name: ModelName
    key: str | None
    live: LiveCall | None
    is_patient: bool = False


_MOST_REFUSALS = 8
"""Maximum number of refusals of one request that are answered by an adapted one."""


_OF_LIVE_CALLS = ("timeout", "request_timeout", "first_event_timeout", "max_retries", "service_tier")
"""Settings of a call that a batch cannot have, and needs not."""

_MOST_RESULT_BYTES = 512 * 1024 * 1024
"""Maximum size of the results of a batch, of which a call has some kilobytes."""

_OPENAI = frozenset({Provider.OPENAI, Provider.OPENAI_CHAT, Provider.OPENAI_RESPONSES})
"""The providers that have a `flex` tier under this name."""


def _has_no_capacity(words: str) -> bool:
    """Return whether a rate limit is the tier's: OpenAI calls it `resource_unavailable`, and charges nothing."""
    return "resource" in words.lower() and "unavailable" in words.lower()


_NOT_RUN = {
    CallStatus.EXPIRED: "the provider did not run the request within 24 hours",
    CallStatus.CANCELED: "the provider's batch was cancelled before the request was run",
}


def _no_reply(why: str) -> ProviderBatchFailed:
    return ProviderBatchFailed(
        f"expected a reply from the provider's batch, found none: {why}; `planq batch retry` sends the line again"
    )


class Providers:
    def __init__(self, settings: ModelSettings, known: KnownAdaptations) -> None:
        self._settings = settings
        self._models = Models(settings)
        self._known = known
        self._batches = Models(settings, max_reply_bytes=_MOST_RESULT_BYTES)
        self._unconstrained = RefusedSchemas()

    def prepare(self, place: str, default: ModelName) -> None:
        self._models.prepare(place, default)

    async def complete(
        self,
        name: ModelName,
        request: ModelRequest,
        spent: BrokenTryUsage,
        key: str | None = None,
        live: LiveCall | None = None,
        *,
        is_patient: bool = False,
    ) -> Completion:
        """Send `request` once; raise an `ExecutionFailed` that says whether it may be retried.

        `key` is the caller's API key, None for the settings'. Streamed text goes to `live`, too. With `is_patient`
        the reply may come from a cheaper, slower service tier. A reply that breaks off is added to `spent`, also when
        cancelled. If a server refuses a part of the request, it is sent again without that part, which is remembered
        for the model at this base URL; a refused answer schema is repeated in words.
        """
        try:
            return await self._adapted(_Call(name, key, live, is_patient), request, spent)
        except FOREIGN as error:
            raise translated(error, secret=key or self._settings.api_keys.get(name.place, "")) from error

    def batch_model(self, name: ModelName, key: str | None) -> Model:
        return self._batches.model(name, key, frozenset(), is_stream=False)

    async def deferred(
        self, name: ModelName, request: ModelRequest, key: str | None, deferral: Deferral, job_id: str
    ) -> Completion | None:
        """Return a batch's reply, None if it cannot wait; raise `CallDeferred` or `ProviderBatchFailed`."""
        try:
            return await self._deferred(_Call(name, key, None), request, deferral, job_id)
        except UnreadableReply as error:
            raise _no_reply(error.message) from error
        except FOREIGN as error:
            failure = translated(error, secret=key or self._settings.api_keys.get(name.place, ""))
            raise _no_reply(failure.message) from error

    async def _deferred(
        self, call: _Call, request: ModelRequest, deferral: Deferral, job_id: str
    ) -> Completion | None:
        model = self.batch_model(call.name, call.key)
        if not can_batch(model):
            return None
        status = deferral.status
        if status is not None and status.is_open:
            raise CallDeferred(None)
        if status is CallStatus.FAILED:
            raise _no_reply(deferral.result or "it failed")
        if status in _NOT_RUN:
            raise _no_reply(_NOT_RUN[status])
        active = await self._known.of(self._base_url(call), call.name.model)
        wire = self._wire(model, call, readable(model, request, active), active)
        for name in _OF_LIVE_CALLS:
            wire.settings.pop(name, None)  # type: ignore[misc]
        asked = BatchRequest(
            custom_id=job_id,
            messages=wire.messages,
            model_settings=wire.settings,
            model_request_parameters=wire.parameters,
        )
        if status is None:
            try:
                encoded = await model.batch_encode(asked)
            except UserError as error:  # a setting that batches cannot have
                _log.warning("call_not_deferred", extra={"model": call.name.full, "cause": str(error)})
                return None
            raise CallDeferred(DeferredCall(call.name.full, encoded.group, encoded.body))
        given = cast(BatchResultStatus, status.value)
        response = model.batch_decode(BatchResult(custom_id=job_id, status=given, body=deferral.result), asked)
        check_is_whole(response)
        return replace(completion_of(response, wire.names, wire.request), is_batched=True)

    async def _adapted(self, call: _Call, request: ModelRequest, spent: BrokenTryUsage) -> Completion:
        base_url = self._base_url(call)
        active = await self._known.of(base_url, call.name.model)
        if request.as_turn is not None:
            turn, request = request.as_turn, replace(request, as_turn=None)
            if self._reads_marked(call, active):
                said = await self._adapted(call, turn, spent)
                if (answer := answer_of_turn(said, turn)) is not None:
                    return answer
                spent.broke_off(said, said)
                spent.attempts += 1
        refusals: dict[Adaptation, str] = {}
        refused_schema: ModelRequest | None = None
        while True:
            is_stream = self._settings.stream and Adaptation.WHOLE_REPLIES not in active
            model = self._models.model(call.name, call.key, active, is_stream=is_stream)
            wire = self._wire(model, call, readable(model, request, active), active)
            try:
                completion = await (self._ask_stream if is_stream else self._ask_whole)(model, wire, spent, call.live)
                break
            except ModelAPIError as error:
                words = self._words_of(error, call)
                status = error.status_code if isinstance(error, ModelHTTPError) else None
                if wire.request.answer_schema is not None and refuses_schema(error):
                    refused_schema, request = request, request.in_words()
                    if is_about_parameter(words):
                        refusals[Adaptation.SCHEMA_IN_WORDS] = words
                    continue
                if (
                    call.is_patient
                    and status == HTTPStatus.TOO_MANY_REQUESTS
                    and _has_no_capacity(f"{error} {words}")
                ):
                    _log.info("flex_has_no_capacity", extra={"model": call.name.full})
                    call = replace(call, is_patient=False)
                    continue
                adaptation = adaptation_for(
                    status, f"{error.message} {words}", wire.possible(model, is_stream=is_stream), active
                )
                if adaptation is None or len(refusals) >= _MOST_REFUSALS:
                    raise
                refusals[adaptation] = words
                active |= {adaptation}
        if refused_schema is not None:
            self._unconstrained.add(call.name, refused_schema)
        if refusals:
            await self._known.learn(base_url, call.name.model, refusals)
        return completion

    def _reads_marked(self, call: _Call, active: frozenset[Adaptation]) -> bool:
        if not self._settings.prompt_cache or Adaptation.NO_CACHE in active:
            return False
        model = self._models.model(call.name, call.key, active, is_stream=self._settings.stream)
        return bool(model.profile.get("supports_cache", False))

    def _has_flex(self, name: ModelName) -> bool:
        if name.provider not in _OPENAI:
            return False
        url = self._settings.base_urls.get(name.place)
        return self._settings.bulk_tier == "flex" or url is None or urlsplit(url).hostname == "api.openai.com"

    def _base_url(self, call: _Call) -> str:
        model = self._models.model(call.name, call.key, frozenset(), is_stream=self._settings.stream)
        return redacted(model.base_url or call.name.place)

    def _words_of(self, error: ModelAPIError, call: _Call) -> str:
        body = error.body if isinstance(error, ModelHTTPError) else None
        if isinstance(body, dict) and isinstance(body.get("error"), dict):
            body = body["error"]
        said = body.get("message") if isinstance(body, dict) else None
        text = said if isinstance(said, str) and said else f"{error.message} {body or ''}"
        secret = call.key or self._settings.api_keys.get(call.name.place, "")
        return without_key(text, secret)

    async def _ask_stream(self, model: Model, wire: Wire, spent: BrokenTryUsage, live: LiveCall | None) -> Completion:
        if live is not None:
            live.try_anew()
        opened = model_request_stream(
            model,
            wire.messages,
            model_settings=wire.settings,
            model_request_parameters=wire.parameters,
            instrument=False,
        )
        shown = None if live is None else LiveReader(live, wire.names)
        async with closing_replies(), opened as stream:
            try:
                async for event in stream:
                    if shown is not None:
                        shown.take(event)
                response = stream.get()
                check_is_whole(response)
            except BaseException:
                broken = stream.get()
                spent.broke_off(completion_of(broken), partial_of(broken, wire.request))
                raise
        if response.usage.unmeasured_requests:
            _log.warning("model_told_no_usage", extra={"model": model.model_name})
        if shown is not None:
            shown.end()
        return completion_of(response, wire.names, wire.request)

    async def _ask_whole(
        self, model: Model, wire: Wire, _spent: BrokenTryUsage, _live: LiveCall | None
    ) -> Completion:
        response = await model_request(
            model,
            wire.messages,
            model_settings=wire.settings,
            model_request_parameters=wire.parameters,
            instrument=False,
        )
        check_is_whole(response)
        return completion_of(response, wire.names, wire.request)

    def _wire(self, model: Model, call: _Call, request: ModelRequest, active: frozenset[Adaptation]) -> Wire:
        name = call.name
        settings = self._wire_settings(name, request)
        if call.is_patient and "service_tier" not in settings and self._has_flex(name):
            settings["service_tier"] = "flex"
        for (
            ignored
        ) in model._unsupported_settings():  # pydantic-ai would leave them out too, with a warning each time
            settings.pop(ignored, None)  # type: ignore[misc]
        if self._settings.prompt_cache and request.offered:
            # Without tools a prompt is too short, or is sent once. A cache entry costs more than plain input.
            settings["cache"] = True if request.continues else {"messages": False}
        parameters = None
        if request.answer_schema is not None:
            if Adaptation.SCHEMA_IN_WORDS not in active and not self._unconstrained.holds(name, request):
                parameters = constrained(model, name.provider, request.answer_schema, settings)
            if parameters is None:
                request = request.in_words()
        return wire_of(model, request, settings, active, parameters)

    async def aclose(self) -> None:
        await self._models.aclose()
        await self._batches.aclose()

    def _wire_settings(self, name: ModelName, request: ModelRequest) -> WireSettings:
        """Return the settings of a call: the agent's, else the operator's for the model, else those of all models."""
        of_model = settings_of(name.full, self._settings.of_models)
        said = of_model if request.settings is None else request.settings.over(of_model)
        timeout = min(said.timeout_seconds or self._settings.request_timeout, self._settings.request_timeout)
        # The limit of all models bounds what an agent asks for; an operator may raise it for one model.
        most = of_model.max_tokens or self._settings.max_output_tokens
        # `timeout` bounds each read, `request_timeout` the whole attempt: a server that drips bytes ends too.
        wire = WireSettings(
            max_tokens=min(request.max_tokens or said.max_tokens or most, most),
            max_retries=0,
            timeout=timeout,
            request_timeout=timeout,
            first_event_timeout=said.first_token_seconds or self._settings.first_token_timeout,
        )
        temperature = said.temperature if request.temperature is None else request.temperature
        more = {
            "temperature": temperature,
            "top_p": said.top_p,
            "seed": said.seed,
            "stop_sequences": said.stop,
            "thinking": said.thinking,
            "service_tier": said.service_tier,
            "parallel_tool_calls": said.parallel_tool_calls,
            "extra_body": said.extra_body,
            "extra_headers": said.extra_headers,
        }
        wire.update({key: value for key, value in more.items() if value is not None})  # type: ignore[typeddict-item]
        return wire
