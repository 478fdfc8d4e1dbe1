"""The rounds before as messages for the planner of a further round: pairs of a call and its result.

`react`: the model's message, then one `tool` message per call. `loop`: the model's call of `__planning__`, then one
result with a numbered line per step. Plans of other sources or forms are shown in the same form. Tools' texts are
JSON in `tool` messages, so they cannot pass for planq's. Messages of people that arrived during a round follow it.
Images, audio and PDF are parts of their message, the newest within bounds; all are named.

Long transcripts are shortened, and say so: whole rounds to a line per call, oldest first; many lines to counts; last
the outputs of the newest round. Cuts are large, so the beginning stays the same for several rounds and prompt caches
hit.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count, repeat
from typing import Any, NamedTuple

from planq.shared.agentic.models.estimate import CHARS_PER_TOKEN, message_chars, message_tokens, tokens_of
from planq.shared.agentic.models.exchange import ChatMessage, ModelReply, ToolCallRequest, TurnForm, reply_of_json
from planq.shared.agentic.plan.errors import format_plan_errors
from planq.shared.agentic.plan.interpret import PLANNING_TOOL_NAME, TOOL_CALLS
from planq.shared.agentic.rounds.guard import DUPLICATE_CALL_BLOCKED, DUPLICATE_OF, SKIPPED
from planq.shared.kernel.steps import RoundRecord, StepResult
from planq.shared.platform.errors import capped
from planq.shared.platform.values.describe import excerpt
from planq.shared.platform.values.parts import Part, is_for_models
from planq.shared.platform.values.preview import fair_share, preview

MAX_SHOWN_ARTIFACTS = 8
"""Maximum number of tools' artifacts in one request, newest first."""

MAX_SHOWN_BYTES = 8 * 1024 * 1024
"""Maximum total size of these."""

_LINES_SHARE = 4
"""Lines for shortened rounds take at most 1/4 of the room."""

_LEFT_SHARE = 3
"""After a cut, whole rounds take 1/3 of their room: less forgets more, more cuts more often."""

_LEAST_SHOWN = 200
"""Minimum characters shown of an output or an error."""

_MANY = 20
"""Rounds with more calls may be summed up if even shortened results do not fit."""

_COUNT_LINE = 200
"""Characters of a line that counts calls, with a provider's overhead."""

_NOT_CARRIED_OUT = "one turn may not hold so many calls: make it again if it is still needed"

_DROPPED = "calls after a question are not carried out: plan them anew, with the answer, where they are still needed"

_PLAIN_NAME = re.compile(r"[\w./:-]{1,80}", re.ASCII)


def transcript(rounds: Sequence[RoundRecord], *, max_tokens: int, form: TurnForm) -> Sequence[ChatMessage]:
    """Return messages for `rounds`, oldest first, in about `max_tokens` tokens; `form` is not `ANSWER`."""
    rounds = _within_bounds(rounds)
    shown = _of_rounds(rounds, form)
    of_rounds = [one.messages for one in shown]
    if tokens_of(sum([one.chars for one in shown])) <= max_tokens:
        return [*chain.from_iterable(of_rounds)]
    oldest, whole = _first_whole([tokens_of(one.chars) for one in shown], max_tokens)
    lines = _summary(rounds[:oldest], max_tokens // _LINES_SHARE, form)
    if whole:
        return [*lines, *_merged(rounds[:oldest]), *chain.from_iterable(of_rounds[oldest:])]
    room = max_tokens - message_tokens(lines)
    newest = _round_messages(rounds[-1], _shortened(rounds[-1], of_rounds[-1], room), form, set())
    if len(rounds[-1].results) > _MANY and message_tokens(newest) > room:
        return [*_summary(rounds, max_tokens, form), *_merged(rounds)]
    return [*lines, *_merged(rounds[:oldest]), *newest]


@dataclass(frozen=True, slots=True, eq=False)
class _Shown:
    """The messages of a round, their characters, and the ids of their calls, after those `before`."""

    messages: Sequence[ChatMessage]
    chars: int
    ids: Sequence[str]
    before: _Shown | None


def _of_rounds(rounds: Sequence[RoundRecord], form: TurnForm) -> Sequence[_Shown]:
    """Return each round's messages, cached in the record for the same rounds before (ids depend on these)."""
    found: list[_Shown] = []
    taken: set[str] = set()
    before: _Shown | None = None
    for record in rounds:
        shown: _Shown | None = record.memo.get(form)
        if shown is None or shown.before is not before:
            messages = _round_messages(record, record.results, form, taken)
            ids = [call.id for message in messages for call in message.tool_calls]
            record.memo[form] = shown = _Shown(messages, message_chars(messages), ids, before)
        taken.update(shown.ids)
        found.append(shown)
        before = shown
    return found


def _within_bounds(rounds: Sequence[RoundRecord]) -> Sequence[RoundRecord]:
    """Return the rounds with the newest artifacts as parts; the others are only named."""
    if not any(result.artifacts for record in rounds for result in record.results):
        return rounds
    number, size = 0, 0
    bounded: list[RoundRecord] = []
    for record in reversed(rounds):
        parts: list[Sequence[Part]] = []
        for result in reversed(record.results):
            shown: list[Part] = []
            for part in filter(is_for_models, reversed(result.artifacts)):
                size += part.size or 0
                number += 1
                if number <= MAX_SHOWN_ARTIFACTS and size <= MAX_SHOWN_BYTES:
                    shown.append(part)
            parts.append(tuple(shown[::-1]))
        bounded.append(_with_parts(record, parts[::-1]))
    return bounded[::-1]


def _with_parts(record: RoundRecord, parts: Sequence[Sequence[Part]]) -> RoundRecord:
    """Return the record with these parts; the same object while they are the same."""
    last: RoundRecord = record.memo.get("with_parts", record)
    if all(result.parts == shown for result, shown in zip(last.results, parts, strict=True)):
        return last
    results = [replace(result, parts=shown) for result, shown in zip(record.results, parts, strict=True)]
    record.memo["with_parts"] = replace(record, results=results)
    return record.memo["with_parts"]  # type: ignore[no-any-return]


def with_refusal(
    messages: Sequence[ChatMessage], reply: ModelReply, errors: Sequence[Mapping[str, Any]]
) -> Sequence[ChatMessage]:
    """Return `messages`, a refused reply to them, and its defects (`PlanError.to_json`, not empty)."""
    taken = {call.id for message in messages for call in message.tool_calls}
    refused = ChatMessage("assistant", reply.text, tuple(reply.tool_calls), state=reply.state)
    return [*messages, *_refused(_with_ids(refused, "x", len(taken), taken), errors)]


def _refused(message: ChatMessage, errors: Sequence[Mapping[str, Any]]) -> Sequence[ChatMessage]:
    """Return a refused message and its defects."""
    defects = _json({"error": "invalid_plan", "message": format_plan_errors(errors)})
    if message.tool_calls:
        return [message, *(_answer_to(call, defects) for call in message.tool_calls)]
    # Also as JSON, because the defects quote the model's text.
    request = (
        f"A check refused your reply above, and nothing was carried out. Reply again, without its defects: {defects}"
    )
    return [*([message] if message.content.strip() else []), ChatMessage("user", request)]


def _round_messages(
    record: RoundRecord, results: Sequence[StepResult], form: TurnForm, taken: set[str]
) -> Sequence[ChatMessage]:
    if record.errors and not results:
        message = _reply_message(record) or ChatMessage("assistant", "")
        messages = _refused(_with_ids(message, "r", record.number, taken), record.errors)
    else:
        in_form = _as_planning if form is TurnForm.LOOP else _as_calls
        messages = in_form(record, results, taken)
    return [*messages, *_merged([record])]


def _merged(rounds: Sequence[RoundRecord]) -> Sequence[ChatMessage]:
    return [ChatMessage("user", text) for record in rounds for text in record.merged]


def _as_planning(record: RoundRecord, results: Sequence[StepResult], taken: set[str]) -> Sequence[ChatMessage]:
    message = _reply_message(record)
    if message is None or [call.name for call in message.tool_calls] != [PLANNING_TOOL_NAME]:
        text = message.content if message is not None and message.tool_calls else ""
        message = ChatMessage("assistant", text, (ToolCallRequest(PLANNING_TOOL_NAME, _planning(record)),))
    message = _with_ids(message, "r", record.number, taken)
    lines = [
        _json({"step": record.first_index + position, "tool": result.tool_name} | _entry(result))
        for position, result in enumerate(results)
    ]
    dropped = record.plan.get("dropped") if isinstance(record.plan, Mapping) else None
    if dropped:
        lines.append(_json({"dropped": dropped, "message": _DROPPED}))
    parts = [part for result in results for part in result.parts]
    return [message, _answer_to(message.tool_calls[0], "\n".join(lines) or "no steps", parts)]


def _as_calls(record: RoundRecord, results: Sequence[StepResult], taken: set[str]) -> Sequence[ChatMessage]:
    message = _reply_message(record)
    if message is None or _is_other_form(message) or len(message.tool_calls) < len(results):
        # What its plan wrote as references is filled in: in this form there are none.
        calls = tuple(ToolCallRequest(result.tool_name, result.arguments) for result in results)
        message = ChatMessage("assistant", "", calls)
    message = _with_ids(message, "s", record.first_index, taken)
    ids = [call.id for call in message.tool_calls]
    answers: list[Any] = [_answer(record, result, ids) for result in results]
    answers += [{"error": "not_carried_out", "message": _NOT_CARRIED_OUT}] * (len(ids) - len(answers))
    parts = chain((result.parts for result in results), repeat(()))
    pairs = zip(message.tool_calls, answers, strict=True)
    return [message, *(_answer_to(call, _json(answer), next(parts)) for call, answer in pairs)]


def _reply_message(record: RoundRecord) -> ChatMessage | None:
    """Return the model's message; None if no model made the plan, or its reply cannot be read."""
    if not isinstance(record.reply, Mapping):
        return None
    try:
        return reply_of_json(record.reply)
    except (KeyError, TypeError, AttributeError):
        return None


def _is_other_form(message: ChatMessage) -> bool:
    return not message.tool_calls or any(call.name == PLANNING_TOOL_NAME for call in message.tool_calls)


def _planning(record: RoundRecord) -> dict[str, Any]:
    calls = []
    for position, result in enumerate(record.results):
        call = _call_of(record, position)
        number = record.first_index + position
        calls.append({"number": number, "tool_name": result.tool_name, "arguments": call.arguments})
    reasoning = record.plan.get("reasoning") if isinstance(record.plan, Mapping) else None
    return {"type": TOOL_CALLS, "reasoning": str(reasoning or ""), "calls": calls}


def _call_of(record: RoundRecord, position: int) -> ToolCallRequest:
    """Return a call as its plan wrote it, with references, if the plan can be read."""
    result = record.results[position]
    calls = record.plan.get("calls") if isinstance(record.plan, Mapping) else None
    call = calls[position] if isinstance(calls, list) and len(calls) == len(record.results) else None
    written = call.get("arguments") if isinstance(call, Mapping) else None
    return ToolCallRequest(result.tool_name, written if isinstance(written, Mapping) else result.arguments)


def _with_ids(message: ChatMessage, letter: str, first: int, taken: set[str]) -> ChatMessage:
    """Return the message with unique ids of calls, its own where possible; adds them to `taken`."""
    calls = []
    for position, call in enumerate(message.tool_calls):
        # Nine letters and digits are an id for every provider (Mistral takes no others).
        made = (f"{letter}{number:08d}" for number in count(first + position))
        name = next(id_ for id_ in chain([call.id], made) if id_ and id_ not in taken)
        taken.add(name)
        calls.append(replace(call, id=name))
    return replace(message, tool_calls=tuple(calls))


def _answer_to(call: ToolCallRequest, content: str, parts: Sequence[Part] = ()) -> ChatMessage:
    return ChatMessage("tool", content, call_id=call.id, name=call.name, parts=parts)


def _answer(record: RoundRecord, result: StepResult, ids: Sequence[str]) -> Any:
    """Return the content of one call's message: a bare output, or an object that describes it."""
    if result.succeeded and result.shortened_from is None and result.content is None and not _unnamed(result):
        return result.output
    entry = _entry(result)
    twin = entry.pop("same_as_step", None)
    if isinstance(twin, int) and 0 <= twin - record.first_index < len(ids):
        # The model of `react` numbers no steps.
        entry["same_as_call"] = ids[twin - record.first_index]
    return entry


_STATUSES = {SKIPPED: "skipped", DUPLICATE_OF: "skipped", DUPLICATE_CALL_BLOCKED: "blocked"}


def _status(result: StepResult) -> str:
    return "succeeded" if result.succeeded else _STATUSES.get(result.code or "", "failed")


def _entry(result: StepResult) -> dict[str, Any]:
    """Return a step's status, and its output or error."""
    entry: dict[str, Any] = {"status": _status(result)}
    if result.succeeded:
        entry |= {} if result.content is None else {"content": result.content}
        entry["output"] = result.output
        if unnamed := _unnamed(result):
            entry["artifacts"] = unnamed
    else:
        entry |= {"error": result.code or "failed", "message": result.error}
        if "step" in result.details and result.code == DUPLICATE_OF:
            entry["same_as_step"] = result.details["step"]
        if result.output is not None or result.code == DUPLICATE_CALL_BLOCKED:
            entry["last_output"] = "" if result.output is None else result.output
    if result.shortened_from is not None:
        entry["shortened_from_bytes"] = result.shortened_from
    return entry


def _unnamed(result: StepResult) -> list[dict[str, Any]]:
    """Return the artifacts of a step that neither its output nor its content names."""
    if not result.artifacts:
        return []
    said = f"{_json(result.output)}{_json(result.content)}"
    return [
        {"artifact_id": part.artifact_id, "media_type": part.media_type, "bytes": part.size}
        for part in result.artifacts
        if _json(part.artifact_id)[1:-1] not in said
    ]


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _first_whole(sizes: Sequence[int], max_tokens: int) -> tuple[int, bool]:
    """Return the oldest round to show, and whether the newest fits whole; a cut frees two thirds of the room."""
    room = max_tokens - max_tokens // _LINES_SHARE
    first, used = 0, 0
    for newest, size in enumerate(sizes):
        used += size
        if used <= (room if first else max_tokens):
            continue
        # The next round builds on the newest one, so only its long outputs are cut.
        while first < newest and used > room // _LEFT_SHARE:
            used -= sizes[first]
            first += 1
    return first, sizes[-1] <= room


def _shortened(record: RoundRecord, messages: Sequence[ChatMessage], max_tokens: int) -> Sequence[StepResult]:
    """Return a round's results, the longest cut so that its messages have about `max_tokens` tokens."""
    lengths = [_length(result) for result in record.results]
    around = message_tokens(messages) * CHARS_PER_TOKEN - sum(lengths)
    share = max(fair_share(lengths, max(max_tokens * CHARS_PER_TOKEN - around, 0)), _LEAST_SHOWN)
    return [
        result if length <= share else _cut(result, share)
        for result, length in zip(record.results, lengths, strict=True)
    ]


def _length(result: StepResult) -> int:
    return len(_json(result.output)) + len(result.error or "") + len(result.content or "")


def _cut(result: StepResult, chars: int) -> StepResult:
    whole = len(_json(result.output).encode("utf-8", "surrogatepass"))
    cut = replace(result, error=None if result.error is None else capped(result.error, chars))
    if result.content is not None:
        chars = fair_share([len(_json(result.output)), len(result.content)], chars)
        cut = replace(cut, content=capped(result.content, chars))
    shown = preview(result.output, chars)
    if shown is result.output:
        return cut
    return replace(cut, output=shown, shortened_from=result.shortened_from or whole)


def _summary(rounds: Sequence[RoundRecord], max_tokens: int, form: TurnForm) -> Sequence[ChatMessage]:
    """Return one message for the rounds that are too long: each call's status, and what is left out."""
    if not rounds:
        return []
    end = rounds[-1].first_index + len(rounds[-1].results)
    heading = f"Left out for length: the rounds before ${end}, with what was said in them. Their calls:"
    if form is TurnForm.LOOP:
        heading += " (later arguments may still refer to their outputs)"
    results = [result for record in rounds for result in _summed_up(record)]
    lines = [result.line for result in results]
    room = max_tokens * CHARS_PER_TOKEN - len(heading) - _COUNT_LINE
    first, used = len(lines), 0
    while first and used + len(lines[first - 1]) < room:
        first -= 1
        used += len(lines[first]) + 1
    counted = [_count_line(results[:first])] if first else []
    return [ChatMessage("user", "\n".join([heading, *counted, *lines[first:]]))]


class _Summed(NamedTuple):
    """A step's line in a summary, and its numbers if lines are left out."""

    step: int
    status: str
    chars: int
    line: str


def _summed_up(record: RoundRecord) -> Sequence[_Summed]:
    if "summed" not in record.memo:
        record.memo["summed"] = [
            _summed(index, result) for index, result in enumerate(record.results, record.first_index)
        ]
    found: Sequence[_Summed] = record.memo["summed"]
    return found


def _summed(index: int, result: StepResult) -> _Summed:
    status, code, chars = _status(result), "", len(result.error or "")
    if result.succeeded:
        chars = (result.shortened_from or len(_json(result.output))) + len(result.content or "")
    elif result.code:
        code = f" ({_plain(result.code)})"
    line = f"- ${index}, {_plain(result.tool_name)}: {status}{code}; {_left_out(chars)}"
    return _Summed(index, status, chars, line)


def _count_line(results: Sequence[_Summed]) -> str:
    counts = Counter(result.status for result in results)
    summed = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
    left_out = _left_out(sum(result.chars for result in results))
    return f"- steps {results[0].step} to {results[-1].step}: {summed}; {left_out}"


def _left_out(chars: int) -> str:
    return f"{chars} characters left out"


def _plain(name: str) -> str:
    """Return a name as it is if it is a plain one, else quoted: a model made it up."""
    return name if _PLAIN_NAME.fullmatch(name) else excerpt(name)
