"""The answer from the findings, by fixed rules: a paragraph per result, and the report itself where one was written.

Whatever a tool returned is shown as it is, capped, and never interpreted; a result of an unexpected shape is shown as
JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from planq.shared.agentic.models.exchange import Ask, Findings
from planq.shared.kernel.steps import StepResult
from planq.shared.platform.errors import capped
from planq.shared.platform.values.encoding import indented
from planq.shared.subjects.orchestrations.contract import BINDINGS_MARK, PLAN_SCHEMA_NAME
from planq.worker.models.completion import NO_COST, Completion
from planq.worker.models.offline.structured import SIGNATURE, structured_text
from planq.worker.models.request import plan_errors_text

_MAX_SNIPPET_CHARS = 300
_MAX_EXCERPT_CHARS = 1_500
_MAX_JSON_CHARS = 2_000
_MAX_REPORT_CHARS = 100_000
_MAX_HITS = 5


def answer_offline(ask: Ask, findings: Findings) -> Completion:
    """Return the rules' answer; its text is never empty, and it costs nothing."""
    if _asks_for_plan(ask):
        return Completion(text=_plan_of_agents(ask), cost_usd=NO_COST)
    if ask.answer_schema is not None:
        return Completion(text=structured_text(ask.answer_schema, ask, findings), cost_usd=NO_COST)
    if findings.is_direct:
        body = _repeat(ask)
    elif findings.plan_errors:
        body = (
            "I did not run anything, because the plan has errors:\n\n"
            f"{plan_errors_text(findings.plan_errors)}\n\nNo tool was called."
        )
    else:
        body = _tell(findings.results)
    return Completion(text=f"{body}\n\n{SIGNATURE}", cost_usd=NO_COST)


def _repeat(ask: Ask) -> str:
    asked = capped(ask.input.strip(), _MAX_EXCERPT_CHARS)
    parts = ["I am not a language model and can only repeat what I was given:"]
    parts += ["\n".join(f"> {line}".rstrip() for line in asked.splitlines())] if asked else []
    parts += [_as_json(ask.data)] if ask.data is not None else []
    return "\n\n".join(parts)


def _tell(results: Sequence[StepResult]) -> str:
    failed = [result for result in results if not result.succeeded]
    succeeded = [result for result in results if result.succeeded]
    parts = [_failure(result) for result in failed]
    reports = [text for result in succeeded if (text := _report(result))]
    if reports and not failed:
        # The report holds what the steps before it found; repeating them would bury it.
        return "\n\n".join(reports)
    sentences = [_describe(result) + _shortened(result) for result in succeeded]
    if failed and sentences:
        parts.append("What had been done by then:")
    parts += sentences
    return "\n\n".join(parts) or "No step was carried out, so there is nothing to tell."


def _failure(result: StepResult) -> str:
    return f"${result.index} ({result.tool_name}) failed: {capped(result.error or 'no reason was given', 1_000)}"


def _shortened(result: StepResult) -> str:
    if result.shortened_from is None:
        return ""
    return f"\n\n(This is a part of it: the whole output has {result.shortened_from} bytes.)"


def _describe(result: StepResult) -> str:
    output = result.output
    if isinstance(output, Mapping):
        teller = _TELLERS.get(result.tool_name)
        sentence = teller(result.arguments, output) if teller else None
        if sentence:
            return sentence
    said = "" if result.content is None else f"{capped(result.content, _MAX_JSON_CHARS)}\n\n"
    return f"{said}{result.tool_name} returned:\n\n{_as_json(output)}"


def _as_json(value: Any) -> str:
    try:
        text = indented(value)
    except (ValueError, RecursionError):
        text = "(a value that cannot be shown)"
    shown = capped(text, _MAX_JSON_CHARS)
    # A fence longer than any run of backticks in the text cannot be closed by it (CommonMark 0.31, 4.5).
    longest = max((len(run) for run in re.findall("`+", shown)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}json\n{shown}\n{fence}"


def _text(mapping: Any, key: str) -> str:
    value = mapping.get(key) if isinstance(mapping, Mapping) else None
    return value.strip() if isinstance(value, str) else ""


def _line(text: str, limit: int) -> str:
    return capped(" ".join(text[: limit * 2].split()), limit)


def _report(result: StepResult) -> str:
    if result.tool_name != "write_report" or not isinstance(result.output, Mapping):
        return ""
    return _tell_report({}, result.output)


def _tell_report(_arguments: Mapping[str, Any], output: Mapping[str, Any]) -> str:
    return capped(_text(output.get("artifact"), "markdown"), _MAX_REPORT_CHARS)


def _tell_search(arguments: Mapping[str, Any], output: Mapping[str, Any]) -> str:
    hits = output.get("results")
    if not isinstance(hits, Sequence) or isinstance(hits, str):
        return ""
    query = _line(str(arguments.get("query", "")), 200)
    if not hits:
        return f"I found nothing about “{query}”."
    lines = [f"About “{query}” I found {len(hits)} passage{'s' if len(hits) > 1 else ''}:", ""]
    for hit in hits[:_MAX_HITS]:
        title = _line(_text(hit, "title"), 120) or "untitled"
        source = _line(_text(hit, "source"), 200)
        where = f" ({source})" if source and source != title else ""
        lines.append(f"- **{title}**{where}: {_line(_text(hit, 'text'), _MAX_SNIPPET_CHARS)}")
    return "\n".join(lines)


def _tell_sum(arguments: Mapping[str, Any], output: Mapping[str, Any]) -> str:
    if "result" not in output:
        return ""
    expression = _line(str(arguments.get("expression", "")), 500)
    return f"{expression} = {_line(str(output['result']), 500)}"


def _tell_fetch(arguments: Mapping[str, Any], output: Mapping[str, Any]) -> str:
    url = _line(_text(output, "url") or str(arguments.get("url", "")), 500)
    title = _line(_text(output, "title"), 200)
    excerpt = capped(_text(output, "text"), _MAX_EXCERPT_CHARS)
    heading = f"**{title}** ({url})" if title else url
    return f"{heading}\n\n{excerpt or 'The page holds no text.'}"


def _tell_now(_arguments: Mapping[str, Any], output: Mapping[str, Any]) -> str:
    iso = _text(output, "iso")
    return f"It is {_line(iso, 100)}." if iso else ""


def _tell_wait(arguments: Mapping[str, Any], _output: Mapping[str, Any]) -> str:
    return f"I waited {_line(str(arguments.get('seconds', '?')), 40)} seconds."


def _tell_agents(_arguments: Mapping[str, Any], output: Mapping[str, Any]) -> str:
    """Return what the last agent of an orchestration said; nothing where it failed, or made an object."""
    steps = output.get("steps")
    last = steps[-1] if output.get("success") is True and isinstance(steps, list) and steps else None
    said = last.get("output") if isinstance(last, Mapping) else None
    # One signature at the end of the whole is enough.
    return capped(_text(said, "text").replace(f"\n\n{SIGNATURE}", ""), _MAX_REPORT_CHARS)


_TELLERS: dict[str, Callable[[Mapping[str, Any], Mapping[str, Any]], str]] = {
    "knowledge_search": _tell_search,
    "calculate": _tell_sum,
    "http_fetch": _tell_fetch,
    "now": _tell_now,
    "wait": _tell_wait,
    "write_report": _tell_report,
    "cp__agent_orchestrate": _tell_agents,
}


_SENTENCE = re.compile(r"(?:[.!?;\n]+\s*|(?:,|(?<![\s,]))\s+then\s+)", re.IGNORECASE)


def _asks_for_plan(ask: Ask) -> bool:
    return (ask.answer_schema or {}).get("title") == PLAN_SCHEMA_NAME


def _plan_of_agents(ask: Ask) -> str:
    names = _names(ask.answer_schema or {})
    prompt = ask.input.partition(BINDINGS_MARK)[0]
    steps: list[dict[str, Any]] = []
    for sentence in filter(str.strip, _SENTENCE.split(prompt)):
        named = next((name for name in names if re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", sentence)), None)
        if named is None:
            continue
        before = f"\n\n{{{{ result.{steps[-1]['agent']['result_key']} }}}}" if steps else ""
        number = len(steps) + 1
        call = {"agent_id": named, "prompt": f"{sentence.strip()}{before}", "result_key": f"result_{number}"}
        steps.append({"id": f"step_{number}", "type": "agent", "status": "pending", "agent": call})
    return json.dumps({"id": "offline", "steps": steps}, ensure_ascii=False)


def _names(schema: Mapping[str, Any]) -> list[str]:
    """Return the names that the schema allows, the longest first: one may be a part of another."""
    try:
        (agent, _) = schema["properties"]["steps"]["items"]["anyOf"]
        names = agent["properties"]["agent"]["properties"]["agent_id"]["enum"]
    except (KeyError, TypeError, ValueError):
        return []
    return sorted(names, key=len, reverse=True)
