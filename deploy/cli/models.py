"""`planq models`: what models' servers refuse, and what planq sends instead. It speaks to the database itself."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from planq.api.cli.connection import AsJson, located_settings
from planq.api.cli.console import as_line, out, print_columns, print_json, print_result
from planq.api.cli.outcome import NOT_OK, OK, end, reported
from planq.deploy.cli.database import with_database
from planq.shared.agentic.models.adaptations import MEANING, known_adaptations
from planq.shared.agentic.models.names import ModelName, parse_model_name
from planq.shared.platform.errors import InvalidRequest

if TYPE_CHECKING:
    from planq.shared.platform.database import Database
    from planq.shared.subjects.adaptations.store import AdaptationStore, StoredAdaptation
    from planq.worker.models.probes import ProbeResult

_MAX_REFUSAL_CHARS = 80


def list_models(as_json: AsJson = False) -> None:
    """List what models' servers have refused, and what planq sends them instead."""
    with reported(as_json=as_json):
        found = with_database(lambda database: _store(database).all())
    if as_json:
        print_json({"items": [_document(one) for one in found]})
    elif not found:
        out.print("no server has refused anything")
    else:
        print_columns(
            [
                [
                    as_line(one.model),
                    as_line(one.base_url),
                    one.adaptation,
                    f"since {one.learned_at:%Y-%m-%d}",
                    as_line(one.refusal, _MAX_REFUSAL_CHARS),
                ]
                for one in found
            ]
        )


def check_model(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="PROVIDER:MODEL, as a job names it.")],
    as_json: AsJson = False,
) -> None:
    """Send six small calls to a model, and print what its server can do and what planq sends instead.

    The calls cost a few hundred tokens, on the server's own key. Exit code 1 unless every reply is as asked.
    """
    import asyncio

    with reported(as_json=as_json), _quiet():
        name = parse_model_name(model)
        if name.provider is None:
            raise InvalidRequest(f"expected a provider's model, as in openai:gpt-5, found {model!r}", field="model")
        found = asyncio.run(_probed(name, as_json=as_json))
    if as_json:
        print_json({"model": model, "probes": [asdict(one) for one in found]})
    end(OK if all(one.is_ok for one in found) else NOT_OK)


@contextmanager
def _quiet() -> Iterator[None]:
    """Log no warnings of model calls within the block: what is sent instead is printed with its call."""
    logger = logging.getLogger("planq.llm")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


async def _probed(name: ModelName, *, as_json: bool) -> list[ProbeResult]:
    from planq.worker.model_gateway import model_settings
    from planq.worker.models.probes import probe_model

    found = []
    async for one in probe_model(model_settings(located_settings()), name):
        found.append(one)
        if not as_json:
            out.print(f"{'ok' if one.is_ok else 'not ok':<7} {one.probe:<15} {as_line(one.found, 300)}")
            for instead in one.instead:
                out.print(f"{'':<7} {'':<15} → {instead}")
    return found


def forget_models(
    model: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="The model's name without its provider; all if left out.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Forget what was refused for a model, or for all; the next call tries it again, within a minute."""
    with reported(as_json=as_json):
        forgotten = with_database(lambda database: _store(database).forget(model))
    print_result({"forgotten": forgotten}, f"{forgotten} forgotten", as_json=as_json)


def _store(database: Database) -> AdaptationStore:
    from planq.shared.subjects.adaptations.store import AdaptationStore

    return AdaptationStore(database)


def _document(stored: StoredAdaptation) -> dict[str, Any]:
    from planq.shared.platform.database import shown_time

    meanings = [MEANING[known] for known in known_adaptations([stored.adaptation])]
    return {
        "base_url": stored.base_url,
        "model": stored.model,
        "adaptation": stored.adaptation,
        "meaning": meanings[0] if meanings else None,
        "refusal": stored.refusal,
        "learned_at": shown_time(stored.learned_at),
        "expires_at": shown_time(stored.expires_at),
    }
