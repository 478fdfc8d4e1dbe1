"""`planq dead-letters`: the messages that were no wake-ups. It speaks to the broker itself, where they lie."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from planq.api.cli.connection import AsJson, located_settings
from planq.api.cli.console import as_line, out, print_json, print_result
from planq.api.cli.outcome import reported
from planq.shared.platform.errors import BrokerUnavailable
from planq.shared.platform.redact import without_password

if TYPE_CHECKING:
    from planq.shared.broker.dead_letters import DeadLetters

T = TypeVar("T")


def list_letters(
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="Maximum number shown, the newest first.")] = 20,
    as_json: AsJson = False,
) -> None:
    """List messages that workers found in their queues and that were no wake-ups, with the reason.

    Any client of the broker can have written them. No job depends on one.
    """
    with reported(as_json=as_json):
        letters = _with_letters(lambda dead_letters: dead_letters.list(limit))
    if as_json:
        print_json({"items": [asdict(letter) for letter in letters]})
        return
    for letter in letters:
        out.print(f"{as_line(letter.at)}  {as_line(letter.queue)}  {as_line(letter.reason, 500)}")
        out.print(f"    {as_line(letter.message, 200)}", style="dim")
    if not letters:
        out.print("no dead letters")


def drop(as_json: AsJson = False) -> None:
    """Remove all of them."""
    with reported(as_json=as_json):
        count = _with_letters(lambda dead_letters: dead_letters.drop())
    print_result({"dropped": count}, f"{count} dropped", as_json=as_json)


def _with_letters(use: Callable[[DeadLetters], T]) -> T:
    from planq.shared.broker.celery_config import create_celery
    from planq.shared.broker.dead_letters import DeadLetters
    from planq.shared.broker.depth import reply_of

    settings = located_settings()
    url = settings.require_broker()
    dead_letters = DeadLetters(create_celery(url, prefix=settings.broker_prefix))
    try:
        return use(dead_letters)
    except Exception as error:  # every client library has errors of its own here; all mean that it is not there
        how = f"refuses ({reply})" if (reply := reply_of(error)) else f"does not answer ({type(error).__name__})"
        raise BrokerUnavailable(f"the broker at {without_password(url)} {how}") from error
    finally:
        dead_letters.close()
