"""Validation of the lines of batches: every check of `POST /jobs`, in chunks that any API process can continue.

One task of each API process owns one batch at a time, and commits it chunk by chunk. If the process dies, another one
continues after the end of its lease.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, ValidationError
from starlette.exceptions import HTTPException

from planq.api.http.exchange import MAX_DEFECTS, HttpRefusal, decode_body
from planq.api.intake.submission import JobBuilder, trace_id
from planq.api.schemas import JobRequest, RequestBody
from planq.shared.agentic.models.estimate import wanted_for
from planq.shared.agentic.models.exchange import Ask, Findings
from planq.shared.agentic.models.names import parse_model_name
from planq.shared.agentic.models.prices import OwnPrice, price_of
from planq.shared.agentic.tools.definition import ToolDefinition
from planq.shared.kernel.budget import Price
from planq.shared.kernel.submission import Submission
from planq.shared.platform.computing import off_loop
from planq.shared.platform.errors import ErrorRecord, InvalidRequest, PlanqError, Unavailable, capped
from planq.shared.platform.timers import every, woken_by
from planq.shared.platform.values.defects import defects_of_fields
from planq.shared.platform.values.encoding import measure
from planq.shared.subjects.batches.estimate import LineEstimate, line_estimate
from planq.shared.subjects.batches.store import BatchStore, CheckedLine, HeldBatch
from planq.shared.subjects.tools.catalogue import Catalogue

_log = logging.getLogger("planq.api")

_POLL_SECONDS = 10.0
"""How soon a batch is found whose process has died; an upload wakes the process that took it."""

_PRICED_TOKENS = 1_000
_MOST_CHARS = 100_000_000

CustomId = Annotated[str, Field(min_length=1, max_length=512, pattern=r"^[^\x00-\x1f\x7f]+$")]


class BatchLine(RequestBody):
    """One line: what its sender calls it, and the request that becomes a job, as `POST /jobs` takes it."""

    custom_id: CustomId
    body: dict[str, Any]
    method: str | None = Field(None, pattern="^POST$")
    url: str | None = None


@dataclass(frozen=True, slots=True)
class _ReadLine:
    """A line as its text says it: a `request`, or the `error` for which there is none."""

    number: int
    custom_id: str | None
    request: JobRequest | None = None
    error: ErrorRecord | None = None


def _read_lines(lines: Sequence[tuple[int, str]], defaults: Mapping[str, Any]) -> list[_ReadLine]:
    return [read_line(number, text, defaults) for number, text in lines]


def read_line(number: int, text: str, defaults: Mapping[str, Any]) -> _ReadLine:
    """Return the request of a line; its own fields that are not null win over the defaults."""
    try:
        sent = decode_body(text.encode(), name="the line")
    except HttpRefusal as refusal:
        return _ReadLine(number, None, error=ErrorRecord(refusal.code, refusal.detail, details=refusal.members))
    custom_id = _custom_id(sent)
    try:
        line = BatchLine.model_validate(sent)
    except ValidationError as error:
        return _ReadLine(number, custom_id, error=defects_of(error))
    try:
        own = {name: value for name, value in line.body.items() if value is not None}
        request = JobRequest.model_validate({**defaults, **own})
    except ValidationError as error:
        return _ReadLine(number, custom_id, error=defects_of(error, "body"))
    return _ReadLine(number, custom_id, request)


def _custom_id(sent: Any) -> str | None:
    """Return the custom id of what else may be no line."""
    try:
        return BatchLine.model_validate({"custom_id": sent["custom_id"], "body": {}}).custom_id
    except (ValidationError, TypeError, KeyError, IndexError):
        return None


def defects_of(error: ValidationError, *place: str) -> ErrorRecord:
    """Return what is wrong with fields of a document that stands at `place`, at most `MAX_DEFECTS` of them."""
    defects = defects_of_fields(error, *place)[:MAX_DEFECTS]
    found = [{"field": capped(one.pointer, 200), "message": one.message} for one in defects]
    message = "; ".join(f"{one['field'] or 'the line'}: {one['message']}" for one in found)
    return ErrorRecord(InvalidRequest.code, capped(message), details={"errors": found})


class Sizes:
    """Values that the lines of a batch share, computed once: tokens of prompts and tools, and prices."""

    def __init__(self, own_prices: Mapping[str, OwnPrice]) -> None:
        self._own_prices = own_prices
        self._tools: dict[tuple[str, ...] | None, int] = {}
        self._prices: dict[str, Price | None] = {}
        self.answer_tokens = wanted_for(_NOTHING, Findings()).asked_tokens

    def planner_tokens(self, names: Sequence[str] | None, known: Mapping[str, ToolDefinition]) -> int:
        """Return the tokens of a planning call that asks nothing yet, with these tools or all that are known."""
        key = None if names is None else tuple(names)
        if key not in self._tools:
            tools = list(known.values()) if names is None else [known[name] for name in names if name in known]
            self._tools[key] = wanted_for(_NOTHING, Findings(), tools).asked_tokens
        return self._tools[key]

    async def price(self, model: str) -> Price | None:
        """Return the price of a call that asks one token; None where it is not known."""
        if model not in self._prices:
            self._prices[model] = await asyncio.to_thread(_price_of, model, self._own_prices)
        return self._prices[model]


_NOTHING = Ask(job_id="", input="", model="")


def _price_of(model: str, own_prices: Mapping[str, OwnPrice]) -> Price | None:
    name = parse_model_name(model)
    if name.provider is None:
        return Price(0.0, 0.0)
    found = price_of(name, _PRICED_TOKENS, own_prices)
    return None if found is None else Price(found.asked_usd / _PRICED_TOKENS, found.token_usd)


@dataclass(frozen=True, slots=True)
class BatchValidation:
    """Validates the lines of batches; `arrived` is set when an upload is complete."""

    batches: BatchStore
    builder: JobBuilder
    catalogue: Catalogue
    arrived: asyncio.Event
    own_prices: Mapping[str, OwnPrice]

    async def keep(self) -> None:
        """Validate lines until cancelled; a failure of the database is retried."""

        async def validate_due() -> None:
            if await self.batches.is_due():
                await self.batches.drop_abandoned()
                while (held := await self.batches.take()) is not None:
                    await self._validate(held)

        await every(_POLL_SECONDS, validate_due, name="batches", pause=woken_by(self.arrived))

    async def _validate(self, held: HeldBatch) -> None:
        """Validate the lines of a batch, unless another process owns it by then."""
        estimate, sizes, after = held.estimate, Sizes(self.own_prices), 0
        while lines := await self.batches.received(held, after):
            read = await off_loop(_read_lines, lines, {"priority": str(held.priority), **held.defaults})
            checked = []
            for line in read:
                one, used = await self._checked(held, line, sizes)
                checked.append(one)
                estimate = estimate if used is None else estimate.plus(used)
                await asyncio.sleep(0)  # a request that came meanwhile goes first
            if not await self.batches.store_checked(held, checked, estimate):
                return
            after = lines[-1][0]
        status = await self.batches.end_validation(held)
        if status is not None:
            _log.info("batch_validated", extra={"batch": str(held.id), "status": status})

    async def _checked(
        self, held: HeldBatch, line: _ReadLine, sizes: Sizes
    ) -> tuple[CheckedLine, LineEstimate | None]:
        """Return a checked line, and its estimate; raises `Unavailable` if that cannot be known."""
        if line.request is None:
            return CheckedLine(line.number, line.custom_id, error=line.error), None
        given = {"trace_id": trace_id(None)}
        try:
            if line.request.conversation_id is not None:
                raise InvalidRequest(
                    "conversation_id: a line of a batch belongs to no conversation; send it as a job"
                )
            submission = await self.builder.build(held.tenant_id, line.request, given)
            used = await self._estimated(submission, sizes)
        except (Unavailable, TimeoutError):
            raise
        except HTTPException as refusal:
            return CheckedLine(
                line.number, line.custom_id, error=ErrorRecord("invalid_request", refusal.detail)
            ), None
        except PlanqError as error:
            return CheckedLine(line.number, line.custom_id, error=ErrorRecord.of(error)), None
        except Exception as error:
            # A line that comes upon a defect of ours must not keep all others waiting.
            _log.exception("line_failed", extra={"batch": str(held.id), "line": line.number})
            return CheckedLine(line.number, line.custom_id, error=ErrorRecord.of(error)), None
        budget = submission.budget or {}
        return CheckedLine(
            line.number,
            line.custom_id,
            submission,
            max_cost_usd=budget.get("max_cost_usd", used.most_cost_usd),
            max_tokens=budget.get("max_tokens", used.max_tokens),
        ), used

    async def _estimated(self, submission: Submission, sizes: Sizes) -> LineEstimate:
        planner = None
        if submission.plan is None:
            known = await self.catalogue.tools(submission.tenant_id)
            planner = sizes.planner_tokens(submission.tools, known)
        with_ = 0 if submission.with_ is None else measure(submission.with_, _MOST_CHARS)
        return line_estimate(
            chars=len(submission.input) + with_,
            planner_tokens=planner,
            answer_tokens=sizes.answer_tokens,
            price=await sizes.price(submission.model),
            has_rounds=submission.strategy.has_rounds,
        )
