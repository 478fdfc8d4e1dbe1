"""From a request to a job that may be stored: every check that needs only the settings and the published tools.

Nothing is stored here, and nothing is asked of anybody; a refusal leaves no trace.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import uuid4

from api.responses import Refusal, encode
from api.schemas import MAX_METADATA_BYTES, JobRequest
from shared.domain.encoding import JsonText
from shared.domain.errors import InvalidRequest, PlanInvalid, TooLarge, capped
from shared.domain.limits import Limits
from shared.domain.model_names import check_model_name
from shared.domain.names import resolve_name, suggestion
from shared.domain.plan import Plan, structural_errors
from shared.domain.plan_errors import PlanError, format_plan_errors
from shared.domain.schemas import MAX_DEPTH, is_deeper_than
from shared.domain.states import Strategy
from shared.domain.tool import ToolDefinition
from shared.domain.validation import validate_plan
from shared.settings import Settings
from shared.store.ids import new_id
from shared.store.submissions import Submission

TENANT = "default"

_INLINE_CALLS = 200
"""Up to this many calls a plan is checked on the event loop (about 10 ms); longer ones go to a thread."""

_MAX_NAMED = 100
_KEY = re.compile(r"[\x21-\x7e]{1,255}")

# W3C Trace Context, Level 1, section 3.2: version, trace-id, parent-id, flags; zero ids and version ff are invalid.
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")


def trace_id(traceparent: str | None) -> str:
    """Return the trace id of a `traceparent` header, or a fresh one where there is none that is valid."""
    found = _TRACEPARENT.fullmatch(traceparent.strip()) if traceparent else None
    return found[1] if found else uuid4().hex


def check_key(key: str | None) -> str | None:
    """Return an Idempotency-Key as it came; raises `Refusal` (400) unless it is 1 to 255 visible ASCII characters."""
    if key is not None and not _KEY.fullmatch(key):
        raise Refusal(
            400,
            "invalid_idempotency_key",
            f"expected an Idempotency-Key of 1 to 255 visible ASCII characters, found {_shown(key)}",
        )
    return key


def _shown(key: str) -> str:
    return f"{len(key)} characters" if not key or len(key) > 255 else ascii(key)


async def accept(
    request: JobRequest, tools: Mapping[str, ToolDefinition], settings: Settings, **given: str | None
) -> Submission:
    """Check a request and return the job it becomes; `given` are the fields that came with headers.

    Raises `InvalidRequest`, `TooLarge` or `PlanInvalid` (with every defect of the plan).
    """
    if request.strategy not in set(Strategy):
        known = ", ".join(Strategy)
        raise InvalidRequest(f"unknown strategy {capped(request.strategy, 80)!r}; known strategies are {known}")
    text = checked_input(request.input, settings.max_input_bytes, may_be_absent=not _needs_input(request))
    model = request.model if request.model is not None else settings.model
    if model != settings.model:
        check_model_name(model, allow_cassette=False)
    check_metadata(request.metadata)
    limits = _limits(request, settings.limits_of(TENANT))
    names = None if request.tools is None else known_names(request.tools, tools)
    plan = None
    if request.plan is not None:
        checked = await valid_plan(request.plan, names, tools, max_steps=limits.max_plan_steps)
        plan = JsonText(checked.model_dump_json(exclude_none=True).encode())
    return Submission(
        id=new_id(),
        tenant_id=TENANT,
        input=text,
        strategy=Strategy(request.strategy),
        model=model,
        limits=limits,
        budget=None if request.limits is None else request.limits.checked_budget(),
        plan=plan,
        tools=names,
        metadata=request.metadata,
        user_id=request.user or "",
        trace_id=given.get("trace_id") or uuid4().hex,
        idempotency_key=given.get("idempotency_key"),
        request_hash=given.get("request_hash"),
    )


def _needs_input(request: JobRequest) -> bool:
    return request.plan is None and (request.agent is None or request.action is None)


async def valid_plan(
    raw: Any, names: Sequence[str] | None, tools: Mapping[str, ToolDefinition], *, max_steps: int
) -> Plan:
    """Return the plan over the tools of these names that `raw` is; raises `PlanInvalid` with every defect."""
    checked = await check_plan(raw, allowed_tools(names, tools), max_steps=max_steps)
    if isinstance(checked, Plan):
        return checked
    hint = "" if tools else "\nNo worker has published a tool yet; is one running?"
    raise PlanInvalid(format_plan_errors(checked) + hint, [error.to_json() for error in checked])


def plan_body(plan: Plan) -> dict[str, Any]:
    """Return a plan as it is stored and shown."""
    body: dict[str, Any] = plan.model_dump(mode="json", exclude_none=True)
    return body


async def check_plan(raw: Any, tools: Mapping[str, ToolDefinition], *, max_steps: int) -> Plan | Sequence[PlanError]:
    """Return the plan that `raw` is, or everything that is wrong with it; a long one is checked in a thread."""
    calls = raw.get("calls") if isinstance(raw, Mapping) else None
    size = len(calls) if isinstance(calls, list) else 0
    if size > 2 * max_steps:
        # So far beyond the limit that checking every call would only cost time.
        return [PlanError(None, "", None, "too_many_steps", {"limit": max_steps, "actual": size})]
    if size <= _INLINE_CALLS:
        return _check(raw, tools, max_steps)
    return await asyncio.to_thread(_check, raw, tools, max_steps)


def known_names(wanted: Sequence[str], tools: Mapping[str, ToolDefinition]) -> list[str]:
    """Return the registered names of the tools that a request allows, each once, in the order given.

    Raises `InvalidRequest` naming those that nobody has published, and what is known.
    """
    found = {name: resolve_name(name, tools) for name in wanted}
    unknown = [name for name, registered in found.items() if registered is None]
    if unknown:
        known = _listed(sorted(tools)) or "none: is a worker running?"
        near = suggestion(unknown[0], tools)
        raise InvalidRequest(f"unknown tools {_listed(unknown)}; {near}known tools are {known}")
    return list(dict.fromkeys(name for name in found.values() if name is not None))


def allowed_tools(names: Sequence[str] | None, tools: Mapping[str, ToolDefinition]) -> Mapping[str, ToolDefinition]:
    """Return the tools of these registered names, all of them for None."""
    return tools if names is None else {name: tools[name] for name in names}


def _check(raw: Any, tools: Mapping[str, ToolDefinition], max_steps: int) -> Plan | Sequence[PlanError]:
    plan = structural_errors(raw)
    if not isinstance(plan, Plan):
        return plan
    return validate_plan(plan, tools, max_steps=max_steps) or plan


def checked_input(text: str | None, limit: int, *, may_be_absent: bool = False) -> str:
    """Return an input of at most `limit` bytes, empty for an absent one.

    Raises `InvalidRequest` for one that says nothing, `TooLarge` for a longer one.
    """
    if text is None and may_be_absent:
        return ""
    if text is None or not text.strip():
        found = "none" if text is None else "only white space" if text else "an empty one"
        raise InvalidRequest(f"input: expected a text that says what to do (or a plan), found {found}")
    size = len(text.encode())
    if size > limit:
        raise TooLarge(f"input: expected at most {limit} bytes of UTF-8, found {size}", limit=limit, actual=size)
    if "\x00" in text:
        raise InvalidRequest(f"input: the character NUL (U+0000) cannot be stored; found at {text.index(chr(0))}")
    return text


def check_metadata(metadata: Mapping[str, Any] | None) -> None:
    """Return when metadata can be kept; raises `InvalidRequest` or `TooLarge`."""
    if metadata is None:
        return
    if is_deeper_than(metadata, MAX_DEPTH):
        raise InvalidRequest(f"metadata: expected at most {MAX_DEPTH} levels, found more")
    size = len(encode(metadata))
    if size > MAX_METADATA_BYTES:
        raise TooLarge(
            f"metadata: expected at most {MAX_METADATA_BYTES} bytes of JSON, found {size}",
            limit=MAX_METADATA_BYTES,
            actual=size,
        )


def _limits(request: JobRequest, limits: Limits) -> Limits:
    return limits if request.limits is None else limits.lowered(request.limits.bounds())


def _listed(names: Iterable[str]) -> str:
    shown = [repr(capped(name, 80)) for name in names]
    return ", ".join(shown[:_MAX_NAMED]) + (", …" if len(shown) > _MAX_NAMED else "")
