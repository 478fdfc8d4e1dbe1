"""A plan of agents from a prompt, by fixed rules: each sentence that names an agent is a step of that agent.

The steps follow each other, and each is shown what the one before it came to. A prompt that names no agent gives a
plan without steps, which its validation refuses.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from shared.domain.model import Ask
from shared.ports.orchestrations import BINDINGS_MARK, PLAN_SCHEMA_NAME

_SENTENCE = re.compile(r"(?:[.!?;\n]+\s*|,?\s+then\s+)", re.IGNORECASE)


def asks_for_plan(ask: Ask) -> bool:
    """True when the question is that of an orchestration's planning call."""
    return (ask.answer_schema or {}).get("title") == PLAN_SCHEMA_NAME


def plan_of_agents(ask: Ask) -> str:
    """Return the JSON text of a plan; precondition: `asks_for_plan`."""
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
