"""Which provider needs an SDK or a key, without importing any."""

from __future__ import annotations

from importlib.util import find_spec

from planq.shared.agentic.models.names import Provider, key_name, parse_place
from planq.shared.platform.errors import AuthFailed, ExecutionFailed, ModelRefused
from planq.worker.models.settings import ModelSettings


def missing_sdk(provider: Provider) -> str | None:
    """Return what to install where a provider's SDK is missing, None where it is there."""
    module, extra = provider.traits.sdk or ("openai", "openai")
    try:
        found = find_spec(module)
    except ModuleNotFoundError:  # a parent of it
        found = None
    if found is not None:
        return None
    return f"the provider {provider.value} needs the package {module}; install it by: pip install 'planq[{extra}]'"


def needs_key(provider: Provider, *, has_url: bool) -> bool:
    """Return whether calls need a key; a compatible server at an address of its own may need none."""
    needed = provider.traits.needs_key
    return not has_url if needed is None else needed


def lacked(settings: ModelSettings, place: str, *, has_key: bool) -> ExecutionFailed | None:
    """Return what this process lacks to call a place's models, None if nothing; `has_key`: the tenant has its own."""
    provider, server = parse_place(place)
    if missing := missing_sdk(provider):
        return ModelRefused(missing)
    if server and place not in settings.base_urls:
        return ModelRefused(f"no server {place}: expected one of PLANQ_MODEL_SERVERS; ask your operator")
    if has_key or place in settings.api_keys or not needs_key(provider, has_url=place in settings.base_urls):
        return None
    where = "give it a `key` in PLANQ_MODEL_SERVERS" if server else f"Set {key_name(place).upper()}"
    return AuthFailed(
        f"no API key for {place}: expected one in the settings, found none. {where}, or use the model `offline`."
    )
