"""Read settings from the environment; errors name the variable."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import AliasChoices, ValidationError

from planq.shared.platform.errors import Misconfigured, capped
from planq.shared.settings.settings import Settings

ELSEWHERE = frozenset(
    {
        *("PLANQ_DATA", "PLANQ_FLOWER_PORT", "PLANQ_FLOWER_HOST", "PLANQ_FLOWER_PASSWORD"),
        *("PLANQ_URL", "PLANQ_API_KEY", "PLANQ_CASES", "PLANQ_FAILPOINT"),
    }
)
"""Read by the command line, the tests and `planq.shared.failpoints`."""

REMOVED: Mapping[str, str] = {
    "PLANQ_AGENT_ORCHESTRATOR_ENABLED": "unset it; to switch orchestration off, set PLANQ_TOOL_POLICY="
    '\'{"cp__agent_orchestrate": "deny", "cp__call_agents": "deny"}\'',
    "PLANQ_AGENT_TIMEOUT_SECONDS": "unset it; a tenant's configuration has `limits.agent_timeout_seconds`",
    "PLANQ_BULK_SHARE": "unset it; a worker for bulk jobs is `planq worker --priority bulk`",
    "PLANQ_DATABASE_TIMEOUT_SECONDS": "unset it; a request waits 5 s for a connection",
    "PLANQ_GUARD_CONSECUTIVE_LIMIT": "unset it, and set `guard` in the loop block of an agent or a job",
    "PLANQ_GUARD_WINDOW_FREQ_LIMIT": "unset it, and set `guard` in the loop block of an agent or a job",
    "PLANQ_GUARD_WINDOW_SIZE": "unset it, and set `guard` in the loop block of an agent or a job",
    "PLANQ_HTTP_FETCH_HOST_CALLS": "unset it; a worker sends at most 16 requests of one tenant to one host at once",
    "PLANQ_HTTP_FETCH_HOST_WAIT_SECONDS": "unset it; a request waits at most 10 s for its turn at a host",
    "PLANQ_HTTP_FETCH_LEAST_RATE": "unset it; a host must send at least 1 000 bytes a second",
    "PLANQ_HTTP_FETCH_LEAST_RATE_SECONDS": "unset it; a host may be silent for 10 s",
    "PLANQ_HTTP_FETCH_MAX_BYTES": "unset it; `http_fetch` reads at most 5 MiB",
    "PLANQ_INLINE_OUTPUT_BYTES": "unset it; an output above 64 KiB is kept apart from its step",
    "PLANQ_INSIGHTS_DAYS": "unset it; an insight is kept for 90 days after the last job that taught it",
    "PLANQ_INSIGHTS_HOLDOUT": "unset it; a tenth of the jobs plans without insights",
    "PLANQ_INSIGHTS_SWEEP_SECONDS": "unset it; planq looks for jobs to learn from every 5 s",
    "PLANQ_LEASE_MARGIN_SECONDS": "unset it; the margin is a fifth of PLANQ_LEASE_SECONDS",
    "PLANQ_LIMITS_URL": "unset it; messages are counted at the broker, or in the database where that is RabbitMQ",
    "PLANQ_MAX_BATCH_BYTES": "unset it; a batch has at most 200 MiB",
    "PLANQ_MAX_BATCH_LINES": "unset it; a batch has at most 50 000 lines",
    "PLANQ_MAX_CONNECTIONS": "unset it; an API process serves at most 12 000 connections",
    "PLANQ_MAX_INPUT_BYTES": "unset it; an `input` has at most 100 kB",
    "PLANQ_MAX_MESSAGE_BYTES": "set PLANQ_MAX_BODY_BYTES instead",
    "PLANQ_MAX_PLAN_BYTES": "unset it; the body of a job has at most 4 MiB",
    "PLANQ_MAX_PLAN_STEPS": "unset it; a tenant's configuration has `limits.max_plan_steps`",
    "PLANQ_MAX_REMINDERS": "unset it, and set `max_reminders` in the tenant's configuration",
    "PLANQ_MAX_STREAMS": "unset it; an API process serves at most 2 500 event streams",
    "PLANQ_MODEL_BULK_TIER": "unset it; bulk jobs use `flex` at OpenAI's own address where no `service_tier` is set",
    "PLANQ_MODEL_FINDINGS_CHARS": "unset it; a model is shown at most 200 000 characters of results",
    "PLANQ_MODEL_FIRST_TOKEN_SECONDS": 'set PLANQ_MODEL_SETTINGS=\'{"*": {"first_token_seconds": 60}}\' instead',
    "PLANQ_MODEL_PROMPT_CACHE": "unset it; prompts are always marked for the provider's prompt cache",
    "PLANQ_MODEL_REFUSAL_DAYS": "unset it; planq remembers for 7 days what a model's server refuses",
    "PLANQ_MODEL_RETRY_AFTER_SECONDS": "unset it; a worker waits for a `Retry-After` of at most 30 s",
    "PLANQ_MODEL_STREAM": "unset it; planq asks a server that refuses to stream for a whole reply by itself",
    "PLANQ_MODEL_TEMPERATURE": 'set PLANQ_MODEL_SETTINGS=\'{"*": {"temperature": 0.5}}\' instead',
    "PLANQ_OPENAI_API": "unset it; planq uses Responses at OpenAI itself and Chat Completions at other servers",
    "PLANQ_ORCHESTRATE_MAX_DEPTH": "unset it; a tenant's configuration has `limits.orchestrate_max_depth`",
    "PLANQ_ORCHESTRATE_MAX_PARALLEL": "unset it; a tenant's configuration has `limits.orchestrate_max_parallel`",
    "PLANQ_ORCHESTRATE_MAX_STEPS": "unset it; a tenant's configuration has `limits.orchestrate_max_steps`",
    "PLANQ_ORCHESTRATE_PLANNER_MODEL": "unset it, and pass `planner_model` to `cp__agent_orchestrate`",
    "PLANQ_PAGE_SESSION_SECONDS": "unset it; a visitor of the pages has to log in again after 12 hours",
    "PLANQ_RETAIN_DELIVERIES_DAYS": "unset it; a delivery is kept for 30 days after its end",
    "PLANQ_RETAIN_VERSIONS_DAYS": "unset it, and set `retention.versions_days` in the tenant's configuration",
    "PLANQ_RETENTION_SWEEP_SECONDS": "unset it; workers look for jobs to remove every 300 s",
    "PLANQ_TENANT_LIMITS": "unset it, and set `limits` in the configuration of each tenant",
    "PLANQ_TENANT_SHARE": "unset it; a tenant takes half of a worker's slots while another waits",
    "PLANQ_UNCERTAIN_DELIVERY": "unset it; a message to a chat that may have arrived is sent again",
    "PLANQ_WAIT_POLL_SECONDS": "unset it; a waiting client looks again after 3 s",
    "PLANQ_WEBHOOK_CONCURRENCY": "unset it; an `io` worker sends at most 50 deliveries at once",
    "PLANQ_WEBHOOK_TIMEOUT_SECONDS": "unset it; a receiver must answer within 15 s",
}
"""What to do instead of each setting removed in 0.2."""

_OF_TESTS = ("PLANQ_TEST_", "PLANQ_CHAOS_")

_OF_ORCHESTRATORS = re.compile(r"PLANQ_(?:\w+_)?(?:SERVICE_(?:HOST|PORT\w*)|PORT_\d+_(?:TCP|UDP)\w*)")
"""Variables that Kubernetes sets for a service named `planq…`."""


def load_settings() -> Settings:
    """Read the environment; raises `Misconfigured` naming each invalid or unknown variable."""
    wrong = list(_misspelt(os.environ))
    try:
        settings = Settings()
    except ValidationError as error:
        wrong = [_defect(one) for one in error.errors()] + wrong
    else:
        wrong = [*settings.contradictions(), *wrong]
        if not wrong:
            return settings
    raise Misconfigured(f"bad settings: {'; '.join(wrong)}")


def variables_of(field: str) -> list[str]:
    """Return the environment variables of a field, the winning one first."""
    alias = Settings.model_fields[field].validation_alias
    if isinstance(alias, AliasChoices):
        return [str(choice) for choice in alias.choices]
    return [str(alias) if alias else f"PLANQ_{field.upper()}"]


def _misspelt(environment: Mapping[str, str]) -> Iterator[str]:
    """Yield a sentence for each unknown variable of planq."""
    known = {name for field in Settings.model_fields for name in variables_of(field)} | ELSEWHERE
    for name in sorted(environment):
        said = name.upper()
        is_ours = said.startswith("PLANQ_") and not said.startswith(_OF_TESTS)
        if not is_ours or said in known or _OF_ORCHESTRATORS.fullmatch(said):
            continue
        if "://" in environment[name] and said.endswith("_PORT"):  # Kubernetes: tcp://10.0.0.1:80
            continue
        if said in REMOVED:
            yield f"{said}: removed in 0.2; {REMOVED[said]}"
            continue
        near = difflib.get_close_matches(said, known, n=1, cutoff=0.75)
        hint = f"did you mean {near[0]}?" if near else "docs/settings.md lists those that there are"
        yield f"{capped(name, 80)}: no such setting; {hint}"


def _defect(error: Any) -> str:
    """Return the defect of one variable, with its value unless it may be a secret."""
    field = str(error["loc"][0])
    names = next((names for names in map(variables_of, Settings.model_fields) if field in names), [field])
    if field in Settings.model_fields:
        names = variables_of(field)
    name = next((one for one in names if one in os.environ), names[0])
    message = str(error["msg"]).removeprefix("Value error, ")
    found = error.get("input")
    is_shown = isinstance(found, str) and not re.search(r"KEY|URL|PASSWORD", name)
    is_shown = is_shown and "found" not in message and repr(found) not in message
    return f"{name}: {message}{f', found {capped(found, 80)!r}' if is_shown else ''}"
