"""Where commands find planq: the API by URL, the database and the broker by settings or a running `planq up`.

The options that commands share stand here too, so that each has one name, one variable and one meaning.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer

from planq.api.cli import runtime
from planq.api.cli.outcome import reported
from planq.shared.platform.errors import Misconfigured

if TYPE_CHECKING:
    from planq.api.cli.client import CommandClient as CommandClient
    from planq.shared.settings.settings import Settings
else:
    CommandClient = Any  # signatures name it, and its import loads httpx

DEFAULT_PORT = "8000"

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document for programs, nothing else.")]
Url = Annotated[
    str | None,
    typer.Option(
        envvar="PLANQ_URL", help="The API; else the port PLANQ_PORT here, else that of `planq up`, else port 8000."
    ),
]
AtMost = Annotated[int, typer.Option(min=1, help="At most so many.")]
JobId = Annotated[UUID, typer.Argument(metavar="ID", help="The job's id.")]
To = Annotated[Path | None, typer.Option("--to", metavar="FILE", help="Write it there; else to standard output.")]
ApiKey = Annotated[str | None, typer.Option(envvar="PLANQ_API_KEY", help="The key, where the API asks for one.")]


def api_command(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options --url and --api-key, and pass a client of the API as its first argument.

    An error is reported as `reported` does, as JSON where the command has --json.
    """
    whole = signature(command, eval_str=True)
    _, *own = whole.parameters.values()
    place = next((number for number, one in enumerate(own) if one.name == "as_json"), len(own))
    options = [
        Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, default=None, annotation=kind)
        for name, kind in (("url", Url), ("api_key", ApiKey))
    ]

    @wraps(command)
    def connected(url: str | None = None, api_key: str | None = None, **given: Any) -> None:
        with reported(as_json=given.get("as_json", False)), connect(url, api_key) as client:
            command(client, **given)

    known = [*own[:place], *options, *own[place:]]
    connected.__signature__ = whole.replace(parameters=known)  # type: ignore[attr-defined]
    return connected


def connect(url: str | None, api_key: str | None) -> CommandClient:
    """Return a client of the API; raises `Misconfigured` when the URL or the key cannot be one."""
    import httpx

    from planq.api.cli.client import CommandClient

    place = url or default_url()
    try:
        parsed = httpx.URL(place)
    except httpx.InvalidURL as invalid:
        raise Misconfigured(f"--url or PLANQ_URL: {place[:100]!r} is no URL ({invalid})") from invalid
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise Misconfigured(f"--url or PLANQ_URL: expected http://… or https://…, found {place[:100]!r}")
    if api_key and not (api_key.isascii() and api_key.isprintable() and " " not in api_key):
        raise Misconfigured("--api-key or PLANQ_API_KEY: expected visible ASCII characters only")
    return CommandClient(place, api_key)


def default_url() -> str:
    """Return the API's URL where none is given."""
    if port := os.environ.get("PLANQ_PORT"):
        return f"http://127.0.0.1:{port}"
    running = runtime.find(runtime.data_folder())
    return running.api_url if running else f"http://127.0.0.1:{DEFAULT_PORT}"


def located_settings() -> Settings:
    """Return the settings; URLs that are not set are those of the `planq up` that runs on PLANQ_DATA, else empty.

    So are the keys under which secrets lie, with that `planq up`'s own database.
    """
    from pydantic import SecretStr

    from planq.shared.settings.environment import load_settings

    settings = load_settings()
    if settings.database_url and settings.broker_url:
        return settings
    running = runtime.find(data := runtime.data_folder())
    if running is None:
        return settings
    located: dict[str, Any] = {
        "database_url": settings.database_url or running.database_url,
        "broker_url": settings.broker_url or running.broker_url,
    }
    if not (settings.database_url or settings.master_keys):
        with contextlib.suppress(OSError):  # it has keys of its own, or they are not this user's to read
            located["secret_keys"] = SecretStr((data / runtime.SECRET_KEYS).read_text("ascii").strip())
    return settings.model_copy(update=located)


def database_settings() -> Settings:
    """Return settings that name a database; raises `Misconfigured` when none is set and no `planq up` runs here."""
    settings = located_settings()
    if not settings.database_url:
        raise Misconfigured(
            f"no planq runs on {runtime.data_folder()}: start `planq up`, or set DATABASE_URL (or PLANQ_DATA, if it "
            "runs on another folder)"
        )
    return settings
