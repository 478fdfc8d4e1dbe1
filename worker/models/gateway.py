"""The only access to language models: `ModelGateway` is a worker's `Planner`, `TurnPlanner` and `Responder`.

It turns a stage's question into one logical call: build the request, choose a provider, a cassette or the offline
rules, retry within the settings, and return the reply with its `ModelCall`. Provider SDKs are imported at the first
call that needs one: an `offline` worker never loads them.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cached_property
from random import SystemRandom
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

from planq.shared.agentic.models.circuit import CircuitOpen, Turn
from planq.shared.agentic.models.contract import CutOff, MayName, ProviderKeys
from planq.shared.agentic.models.ending import CutOffBy
from planq.shared.agentic.models.exchange import Ask, ChatMessage, Findings, ModelFailed, ModelReply, TurnForm
from planq.shared.agentic.models.failure import error_class
from planq.shared.agentic.models.names import OFFLINE, ModelName, Provider, parse_model_name, parse_place
from planq.shared.agentic.models.prices import own_price, price_of
from planq.shared.agentic.plan.speech import SpeechForm
from planq.shared.agentic.tools.definition import ToolDefinition
from planq.shared.kernel.budget import Price
from planq.shared.kernel.retry import RetryPolicy
from planq.shared.kernel.usage import MadeArtifact, ModelCall, Purpose
from planq.shared.platform.errors import (
    Cancelled,
    ErrorRecord,
    ExecutionFailed,
    InternalFault,
    InvalidOutput,
    InvalidRequest,
    ModelRefused,
    PolicyDenied,
    ProviderBatchFailed,
    RateLimited,
)
from planq.shared.platform.lacking import LackedHere
from planq.shared.platform.redact import secrets_of
from planq.shared.platform.values.describe import excerpt, sentence_list
from planq.shared.subjects.adaptations.store import AdaptationStore
from planq.worker.models.adapting import KnownAdaptations
from planq.worker.models.cassette import Recorder, replay
from planq.worker.models.circuits import Circuits
from planq.worker.models.completion import BrokenTryUsage, Completion, MadeFile, Usage
from planq.worker.models.files import FileStore, StoredFiles
from planq.worker.models.live import LiveCall, LiveTexts
from planq.worker.models.offline import answer_offline, guide_offline, plan_offline, turn_offline
from planq.worker.models.request import (
    ModelRequest,
    going_on,
    guide_request,
    plan_request,
    respond_request,
    turn_request,
    without_artifacts,
)
from planq.worker.models.sdks import lacked
from planq.worker.models.settings import ModelSettings

if TYPE_CHECKING:
    from pydantic_ai.models import Model

    from planq.worker.models.parts import PartLoader
    from planq.worker.models.providers import Providers

_log = logging.getLogger("planq.llm")

_FINDINGS_CHARS = 200_000
"""Maximum characters of results that the responding model is shown; the longest are shortened first."""


@dataclass(frozen=True)
class _Question:
    """A request, built at first use, and its offline answer; `speech` locates the words for people."""

    purpose: Purpose
    write: Callable[[], ModelRequest]
    offline: Callable[[], Completion]
    speech: SpeechForm | None = SpeechForm.WORDS
    may_be_silent: bool = False

    @cached_property
    def request(self) -> ModelRequest:
        return self.write()


class ModelGateway:
    """Implements `Planner`, `TurnPlanner` and `Responder`; one per process, usable from any event loop.

    Clients are created at first use, per event loop, so a gateway created before a fork is safe after it. `patience`
    and `clock` (seconds, monotonic) replace waiting and measuring in tests.
    """

    def __init__(
        self,
        settings: ModelSettings,
        *,
        patience: TryLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
        keys: ProviderKeys | None = None,
        may_name: MayName | None = None,
        texts: LiveTexts | None = None,
        adaptations: AdaptationStore | None = None,
        parts: PartLoader | None = None,
        files: FileStore | None = None,
        is_elsewhere: Callable[[str], Awaitable[bool]] | None = None,
    ) -> None:
        """Prepare the gateway; open only `record_path`, so that a bad one fails now with `Misconfigured`.

        `keys` are those of tenants; without one the settings' key is used, for models that the tenant `may_name`.
        Text is streamed to `texts`. `adaptations` stores servers' refusals; without it they last as long as the
        process. Without `parts`, requests with images, files or audio are refused; without `files`, files of models
        are not stored. `is_elsewhere` returns whether a live worker can call the models of a place; then a call that
        this process cannot make raises `LackedHere`.
        """
        self._settings = settings
        self._patience = patience or TryLimits(settings)
        self._clock = clock
        self._keys = keys
        self._may_name = may_name
        self._texts = texts
        self._parts = parts
        self._files = files
        self._is_elsewhere = is_elsewhere
        self._circuits = Circuits(clock)
        self._known = KnownAdaptations(adaptations, clock)
        self._recorder = None
        if settings.record_path is not None:
            urls = [secrets_of(url) for url in settings.base_urls.values()]
            self._recorder = Recorder(settings.record_path, set(settings.api_keys.values()).union(*urls))
        self._cassette = parse_model_name(settings.default_model).cassette
        self._providers: Providers | None = None
        self._has_loaded: set[Provider] = set()

    async def plan(self, ask: Ask, tools: Sequence[ToolDefinition], *, cut_off: CutOff | None = None) -> ModelReply:
        question = _Question(
            Purpose.PLAN, lambda: plan_request(ask, tools), lambda: plan_offline(ask, tools), SpeechForm.DECISION
        )
        return await self._call(ask, question, cut_off)

    async def guide(self, ask: Ask, tools: Sequence[ToolDefinition], *, cut_off: CutOff | None = None) -> ModelReply:
        question = _Question(Purpose.PLAN, lambda: guide_request(ask, tools), lambda: guide_offline(ask, tools), None)
        return await self._call(ask, question, cut_off)

    async def turn(
        self,
        ask: Ask,
        tools: Sequence[ToolDefinition],
        transcript: Sequence[ChatMessage],
        form: TurnForm,
        *,
        cut_off: CutOff | None = None,
    ) -> ModelReply:
        question = _Question(
            Purpose.RESPOND if form is TurnForm.ANSWER else Purpose.PLAN,
            lambda: turn_request(ask, tools, transcript, form),
            lambda: turn_offline(ask, tools, transcript, form),
            # An answer may come in the form of a turn (`ModelRequest.as_turn`).
            SpeechForm.WORDS if form is TurnForm.ANSWER and (ask.answer_schema or not tools) else SpeechForm.DECISION,
            may_be_silent=form is not TurnForm.ANSWER,
        )
        return await self._call(ask, question, cut_off)

    async def respond(self, ask: Ask, findings: Findings, *, cut_off: CutOff | None = None) -> ModelReply:
        question = _Question(
            Purpose.RESPOND,
            lambda: respond_request(ask, findings, _FINDINGS_CHARS),
            lambda: answer_offline(ask, findings),
        )
        return await self._call(ask, question, cut_off)

    async def price(self, model: str, asked_tokens: int) -> Price | None:
        """Return the price of a call to `model` with `asked_tokens`, None if unknown."""
        try:
            name = parse_model_name(model or self._settings.default_model)
        except InvalidRequest:
            return None  # the call itself is refused for it
        if name.provider is None:
            return Price(0.0, 0.0)
        # The first time takes half a second, hence in a thread.
        return await asyncio.to_thread(price_of, name, asked_tokens, self._settings.prices)

    async def batch_model(self, tenant_id: str, model: str) -> tuple[Model, str]:
        """Return the model and API key for a tenant's batches; raise `ExecutionFailed` if this process has none."""
        name = self._parsed(model)
        if name.provider is None:
            raise ModelRefused(f"the model {model!r} has no batch API")
        key = None if self._keys is None else await self._keys(tenant_id, name.place)
        await self._check_has(name, key, BrokenTryUsage())
        providers = await self._loaded(name.provider)
        return providers.batch_model(name, key), key or self._settings.api_keys.get(name.place, "")

    async def warm_up(self) -> None:
        """Load the SDKs and create the clients of all configured providers, the default model's first; send nothing.

        Raises `AuthFailed` if the default model's key is missing.
        """
        default = parse_model_name(self._settings.default_model)
        for place in dict.fromkeys([default.place, *self._settings.api_keys]):
            try:
                if place:
                    (await self._loaded(parse_place(place)[0])).prepare(place, default)
            except ModelRefused as error:  # its key alone is not enough: a call says so
                _log.warning("model_not_warmed_up", extra={"place": place, "cause": str(error)})

    async def aclose(self) -> None:
        """Close the clients of the running event loop; those of a loop that is gone went with it. May be repeated."""
        if self._providers is not None:
            await self._providers.aclose()

    async def _call(self, ask: Ask, question: _Question, cut_off: CutOff | None) -> ModelReply:
        name = ask.model or self._settings.default_model
        models = dict.fromkeys([name, *ask.fallback_models])
        if ask.deferral is not None and ask.deferral.model is not None:
            models = dict.fromkeys([name := ask.deferral.model])  # who was sent the call answers it
        call_id = ask.call_id or uuid4()
        started = self._clock()
        spent = BrokenTryUsage()
        completion: Completion | None = None
        failed: ExecutionFailed | None = None
        asked = ""

        def record(error: ExecutionFailed | None, artifacts: Sequence[MadeArtifact] = ()) -> ModelCall:
            latency_ms = round((self._clock() - started) * 1000)
            call = self._record(name, question, latency_ms, spent, completion, error)
            return replace(call, id=call_id, artifacts=artifacts)

        try:
            with self._shown(ask, question) as live:
                for name in models:
                    try:
                        completion = await self._answered(ask, name, question, spent, live)
                        break
                    except CircuitOpen as error:
                        failed = failed or error  # what a model did answer says more
                    except ExecutionFailed as error:
                        failed, asked = error, name
                        fields = {"code": error.code, "category": str(error_class(error.code))}
                        _log.warning("model_failed", extra={"job": ask.job_id, "model": name, **fields})
                        if isinstance(error, _OF_NO_MODEL):
                            break
                if completion is None:
                    name = asked or name
                    raise failed or InternalFault("no model was asked")
                await self._keep(name, question, completion, live)
            made = await self._stored(ask, name, completion.files)
        except ExecutionFailed as error:
            turn = self._turn(list(models), ask.tenant_id) if error.retryable else None
            raise ModelFailed(error, record(error), turn) from error
        except asyncio.CancelledError:
            if cut_off is not None:
                cut_off(record(Cancelled("the call was cut off: its job had ended, or its worker stopped")))
            raise
        return ModelReply(
            completion.text if made is None else made.told(ask, completion),
            completion.tool_calls,
            record(None, () if made is None else made.artifacts),
            completion.state,
            completion.incomplete,
        )

    async def _stored(self, ask: Ask, name: str, files: Sequence[MadeFile]) -> StoredFiles | None:
        if not files:
            return None
        if self._files is None:
            made = StoredFiles(notes=[f"{len(files)} files were not stored: this process has no storage for files."])
        else:
            made = await self._files.stored(ask, name, files)
        if made.notes:
            _log.warning("model_file_not_stored", extra={"job": ask.job_id, "model": name, "notes": made.notes})
        return made

    def _turn(self, names: Sequence[str], tenant_id: str) -> Turn | None:
        waits: dict[str, float] = {}
        for name in names:
            full = parse_model_name(name).full
            wait = self._circuits.turn(full, tenant_id)
            if wait is None:
                return None
            waits[full] = wait
        return Turn(tuple(waits), timedelta(seconds=min(waits.values())))

    def _record(
        self,
        name: str,
        question: _Question,
        latency_ms: int,
        spent: BrokenTryUsage,
        completion: Completion | None,
        error: ExecutionFailed | None,
    ) -> ModelCall:
        used = spent.reported if error is None else spent.probable
        shown = None
        if error is not None:
            shown = replace(ErrorRecord.of(error), details={**error.details, **spent.caveat})
        if completion is not None:
            used += Usage.of(completion)
        own = own_price(self._settings.prices, name)
        cost = used.cost_usd
        if own is not None:
            cost = own.cost(used.input_tokens, used.output_tokens, used.cache_read_tokens)
            if completion is not None and completion.is_batched:
                cost /= 2
        return ModelCall(
            purpose=question.purpose,
            model=name,
            latency_ms=latency_ms,
            input_tokens=used.input_tokens,
            output_tokens=used.output_tokens,
            cost_usd=cost,
            cache_read_tokens=used.cache_read_tokens,
            cache_write_tokens=used.cache_write_tokens,
            attempts=spent.attempts,
            error=shown,
            exchange=self._exchange(name, question, completion or spent.partial),
        )

    async def _answered(
        self, ask: Ask, name: str, question: _Question, spent: BrokenTryUsage, live: LiveCall | None
    ) -> Completion:
        completion = await self._patience.insist(lambda: self._complete(ask, name, question, spent, live))
        try:
            _check_says_something(question, completion)
        except InvalidOutput as error:
            spent.broke_off(completion, completion)
            if completion.is_batched:  # the same reply would come again
                raise ProviderBatchFailed(f"{error.message} `planq batch retry` sends the line again.") from error
            raise
        if completion.incomplete is None or completion.tool_calls:
            return completion
        if ask.on_incomplete == "continue" and completion.incomplete.may_go_on:
            completion = await self._gone_on(ask, name, question, completion, spent, live)
        if completion.incomplete is not None and ask.on_incomplete == "fail":
            completion = replace(completion, incomplete=replace(completion.incomplete, is_failure=True))
        return completion

    async def _gone_on(
        self,
        ask: Ask,
        name: str,
        question: _Question,
        begun: Completion,
        spent: BrokenTryUsage,
        live: LiveCall | None,
    ) -> Completion:
        """Return a text with what one more call adds to it; the text alone where that fails, or no budget is left."""
        ask = replace(ask, deferral=None)
        try:
            most = None
            if ask.more is not None:
                latency_ms = 0  # the record of the call has it
                most = await ask.more(self._record(name, question, latency_ms, spent, begun, None))
            more = replace(question, write=lambda: going_on(question.request, begun.text, most))
            rest = await self._patience.insist(lambda: self._complete(ask, name, more, spent, live))
        except ExecutionFailed as error:
            _log.warning("answer_not_continued", extra={"job": ask.job_id, "model": name, "code": error.code})
            return begun
        spent.broke_off(begun, begun)  # adds its usage to that of the rest
        files = [*begun.files, *rest.files]
        return replace(rest, text=begun.text + rest.text, files=files, tool_calls=(), state=None)

    async def _complete(
        self, ask: Ask, name: str, question: _Question, spent: BrokenTryUsage, live: LiveCall | None
    ) -> Completion:
        parsed = self._parsed(name)
        if parsed.provider is None or self._cassette:
            return await self._without_provider(parsed, question, ask, spent)
        key = None if self._keys is None else await self._keys(ask.tenant_id, parsed.place)
        if key is None and self._may_name is not None and not await self._may_name(ask.tenant_id, parsed.full):
            raise PolicyDenied(
                f"the model {parsed.full!r} is none that this tenant may name on the server's keys: an operator can "
                "list it in the tenant's `models`, or store a key of the tenant's own"
            )
        await self._check_has(parsed, key, spent)
        request = question.request if self._parts is not None else without_artifacts(question.request)
        if any(message.parts for message in request.messages):
            if self._parts is None:
                raise _reads_no_parts(parsed.full, request)
            request = await self._parts.loaded(ask.tenant_id, request)
        if ask.deferral is not None:
            spent.attempts += 1
            providers = await self._loaded(parsed.provider)
            batched = await providers.deferred(parsed, request, key, ask.deferral, ask.job_id)
            if batched is not None:
                return batched
            spent.attempts -= 1
        with self._circuits.around(parsed.full, ask.tenant_id, ask.job_id):
            spent.attempts += 1
            # One try at the cheaper tier: it may have no capacity, or be too slow for the timeouts.
            is_patient = ask.is_bulk and spent.attempts == 1
            providers = await self._loaded(parsed.provider)
            return await providers.complete(parsed, request, spent, key, live, is_patient=is_patient)

    async def _check_has(self, name: ModelName, key: str | None, spent: BrokenTryUsage) -> None:
        """Raise `LackedHere` if this process lacks what a call needs and another live worker has it."""
        if self._is_elsewhere is None:
            return
        failure = lacked(self._settings, name.place, has_key=key is not None)
        if failure is None:
            return
        if await self._is_elsewhere(name.place):
            _log.warning("model_lacked_here", extra={"model": name.full, "reason": failure.message})
            raise LackedHere(f"another live worker can call {name.full}, this one cannot: {failure.message}")
        spent.attempts += 1
        failure.message += " No other live worker can call it either."
        raise failure

    async def _without_provider(
        self, parsed: ModelName, question: _Question, ask: Ask, spent: BrokenTryUsage
    ) -> Completion:
        if parsed.is_offline and ask.parts:
            raise _reads_no_parts(parsed.full, question.request)
        spent.attempts += 1
        if parsed.is_offline:
            return question.offline()
        # A job or an agent may name a provider's model: a replay asks no network for any.
        return await asyncio.to_thread(replay, self._cassette, question.request, parsed.full)

    async def _loaded(self, provider: Provider) -> Providers:
        if self._providers is not None and provider in self._has_loaded:
            return self._providers
        # The import takes seconds and tens of megabytes: in a thread, so that heartbeats go on meanwhile.
        module = await asyncio.to_thread(importlib.import_module, "planq.worker.models.providers")
        clients = await asyncio.to_thread(importlib.import_module, "planq.worker.models.clients")
        await asyncio.to_thread(clients.load_sdk, provider)
        self._providers = self._providers or module.Providers(self._settings, self._known)
        self._has_loaded.add(provider)
        return self._providers

    def _parsed(self, name: str) -> ModelName:
        try:
            parsed = parse_model_name(name)
        except InvalidRequest as error:
            raise ModelRefused(error.message) from error
        if parsed.cassette and name != self._settings.default_model:
            # The API refuses it too; here it is the last door before a file is opened.
            raise PolicyDenied("a cassette can only be the operator's default model, for its name is a path")
        return parsed

    @contextlib.contextmanager
    def _shown(self, ask: Ask, question: _Question) -> Iterator[LiveCall | None]:
        """Yield the live text of a call while it runs, None if it is not for people."""
        live = None if self._texts is None else self._texts.call(ask, question.speech)
        try:
            yield live
        finally:
            if live is not None:
                live.drop()

    async def _keep(self, name: str, question: _Question, completion: Completion, live: LiveCall | None) -> None:
        if live is not None:
            await live.end()
        if self._recorder is None:
            return
        try:
            await asyncio.to_thread(self._recorder.append, name, question.request, completion)
        except OSError as error:
            raise InternalFault(f"cannot record the exchange in {self._settings.record_path}: {error}") from error

    def _exchange(self, name: str, question: _Question, completion: Completion | None) -> dict[str, Any] | None:
        if not self._settings.keep_exchanges:
            return None
        asked = None if completion is None else completion.asked
        # The offline rules read the plan and the results themselves; there is no prompt that they were sent.
        request = None if name == OFFLINE else (asked or question.request).to_keep()
        return {"request": request, "reply": None if completion is None else completion.to_json()}


_OF_NO_MODEL = (PolicyDenied, InternalFault, ProviderBatchFailed)
"""Errors that another model would not change."""

_ENDED = ("stop", "tool_call")
"""The reasons for which a reply ends in order; a limit or a filter cuts it off."""


def _check_says_something(question: _Question, completion: Completion) -> None:
    """Raise `InvalidOutput` for a reply without what the stage needs, `ModelRefused` for a filtered one."""
    purpose = question.purpose
    if completion.text.strip() or (purpose is Purpose.PLAN and completion.tool_calls):
        return
    if completion.files and not completion.tool_calls:
        return
    if question.may_be_silent and completion.finish_reason in _ENDED:
        return
    cut = completion.incomplete
    if cut is not None and cut.reason in (CutOffBy.CONTENT_FILTER, CutOffBy.REFUSAL):
        raise ModelRefused(f"the model's reply was stopped before it said anything: {cut.sentence}")
    ended = completion.finish_reason if cut is None else cut.finish_reason
    reason = f" (finish reason: {ended})" if ended else ""
    if completion.tool_calls:  # where none is offered: after the last round that a limit allows, or to answer
        names = sentence_list([excerpt(call.name) for call in completion.tool_calls], _MOST_NAMED)
        raise InvalidOutput(
            f"the model called {names}{reason} where only a text was expected: no further call could be made. "
            "Try again, or allow the job more rounds or steps."
        )
    expected = "a text or a tool call" if purpose is Purpose.PLAN else "a text"
    is_too_long = cut is not None and cut.reason is CutOffBy.LENGTH
    advice = "raise the limit of output tokens" if is_too_long else "try again"
    raise InvalidOutput(f"the model answered with nothing{reason}; expected {expected}; {advice}.")


def _reads_no_parts(model: str, request: ModelRequest) -> ModelRefused:
    kinds = sorted({part.type for message in request.messages for part in message.parts})
    return ModelRefused(
        f"the model {model!r} reads text only; found input of the type {', '.join(kinds)}: name another model, or "
        "send text"
    )


_MOST_NAMED = 5


_T = TypeVar("_T")
Sleep = Callable[[float], Awaitable[None]]
"""Waits that many seconds."""


@dataclass(frozen=True, slots=True)
class TryLimits:
    """The tries of a call; `sleep` and `jitter` (a draw from [0, 1)) are parameters for tests."""

    settings: ModelSettings
    sleep: Sleep = asyncio.sleep
    jitter: Callable[[], float] = field(default=SystemRandom().random)

    async def insist(self, attempt: Callable[[], Awaitable[_T]]) -> _T:
        """Return the first success, or raise the error after which no try is allowed, or the server's wait is too
        long.
        """
        number = 0
        failed: ExecutionFailed | None = None
        while True:
            number += 1
            try:
                return await attempt()
            except CircuitOpen as refused:
                raise failed or refused from None
            except ExecutionFailed as error:
                delay = self._delay_after(error, number)
                if delay is None:
                    raise
                failed = error
            await self.sleep(delay.total_seconds())

    def _delay_after(self, error: ExecutionFailed, number: int) -> timedelta | None:
        if not error.retryable or number >= self.settings.max_attempts:
            return None
        settings = self.settings
        policy = RetryPolicy(timedelta(seconds=settings.backoff_base), timedelta(seconds=settings.backoff_cap))
        delay = policy.delay_before(number + 1, self.jitter())
        wish = error.retry_after if isinstance(error, RateLimited) else None
        if wish is None:
            return delay
        return max(delay, wish) if wish <= timedelta(seconds=self.settings.retry_after_cap) else None
