"""The grammar of model names, the same for the API, the settings and the gateway.

    offline                      planq's own rules; no language model and no network
    cassette:PATH                recorded exchanges, read from a file
    PROVIDER:MODEL               openai, anthropic or google; `openai` also means every OpenAI-compatible server

A cassette names a file, so only the operator may choose one: a name that came in over HTTP is untrusted text and is
refused there (`allow_cassette=False`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from planq.shared.domain.errors import InvalidRequest, capped

OFFLINE = "offline"
CASSETTE_PREFIX = "cassette:"
MAX_MODEL_NAME_CHARS = 200
"""Longer than any published model name; a cassette's path is not bound by it."""

# The model's part may end up in a URL path (Google), hence no "..", no "//", no "?", "#" or "%".
_MODEL = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_:@+\-]|[./](?![./]))*", re.ASCII)


MODEL_PATTERN = r"^(offline|(openai|anthropic|google):[A-Za-z0-9]([A-Za-z0-9_:@+\-]|[./](?![./])){0,180})$"
"""The names that may come in over HTTP, as JSON Schema has patterns."""


class Provider(StrEnum):
    """Whose protocol a model speaks."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"
    GOOGLE = "google"


@dataclass(frozen=True, slots=True)
class ModelName:
    """A parsed name. Exactly one of `provider` (with `model`) and `cassette` is set; neither is for `offline`."""

    full: str
    provider: Provider | None = None
    model: str = ""
    cassette: str = ""

    @property
    def is_offline(self) -> bool:
        """True for planq's own rules."""
        return self.provider is None and not self.cassette


def parse_model_name(name: str) -> ModelName:
    """Return the parts of `name`; raise `InvalidRequest` that says what is expected."""
    if name == OFFLINE:
        return ModelName(name)
    if name.startswith(CASSETTE_PREFIX):
        path = name[len(CASSETTE_PREFIX) :]
        if not path.strip() or "\0" in path:
            raise _refused(name, allow_cassette=True)
        return ModelName(name, cassette=path)
    prefix, colon, model = name.partition(":")
    known = len(name) <= MAX_MODEL_NAME_CHARS and colon and prefix in set(Provider) and _MODEL.fullmatch(model)
    if not known:
        raise _refused(name, allow_cassette=True)
    return ModelName(name, provider=Provider(prefix), model=model)


def check_model_name(name: str, *, allow_cassette: bool) -> None:
    """Raise `InvalidRequest` unless `name` is a model name; whether the provider knows the model is not checked.

    Pass `allow_cassette=False` for every name that an operator did not write: a cassette is a path.
    """
    if not allow_cassette and name.startswith(CASSETTE_PREFIX):
        raise _refused(name, allow_cassette=False)
    parse_model_name(name)


def _refused(name: str, *, allow_cassette: bool) -> InvalidRequest:
    providers = ", ".join(f"{provider.value}:<model>" for provider in Provider)
    cassette = ", cassette:<file>" if allow_cassette else ""
    hint = "" if allow_cassette or not name.startswith(CASSETTE_PREFIX) else "; a cassette is the operator's choice"
    return InvalidRequest(
        f"unknown model {capped(name, 80)!r}: expected {OFFLINE}, {providers}{cassette}{hint}", field="model"
    )
