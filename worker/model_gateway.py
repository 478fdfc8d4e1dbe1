"""The model gateway of a worker, put together from the settings and the database."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from planq.shared.agentic.models.names import ModelName, key_name
from planq.shared.platform.database import Database
from planq.shared.platform.errors import AuthFailed, Misconfigured
from planq.shared.platform.lacking import LackedHere, model_place
from planq.shared.settings.kinds import comma_separated
from planq.shared.settings.settings import Settings
from planq.shared.subjects.adaptations.store import AdaptationStore
from planq.shared.subjects.payloads.contract import Payloads
from planq.shared.subjects.tenants.config import Tenants, may_name_model
from planq.shared.subjects.tenants.secrets import SecretStore
from planq.worker.egress import Egress
from planq.worker.engine.persist import persist
from planq.worker.models.files import FileStore, Put
from planq.worker.models.gateway import ModelGateway
from planq.worker.models.live import LiveTexts
from planq.worker.models.parts import PartLimits, PartLoader
from planq.worker.models.sdks import lacked, missing_sdk, needs_key
from planq.worker.models.settings import ModelSettings


def model_settings(settings: Settings, egress: Egress | None = None) -> ModelSettings:
    return ModelSettings(
        default_model=settings.model,
        base_urls=settings.model_urls,
        api_keys=settings.model_keys,
        request_timeout=settings.model_timeout_seconds,
        max_attempts=settings.model_attempts,
        max_output_tokens=settings.model_max_output_tokens,
        of_models=settings.model_settings,
        prices=settings.model_prices,
        keep_exchanges=settings.keep_exchanges,
        record_path=settings.record,
        egress=egress,
    )


def model_gateway(
    models: ModelSettings,
    settings: Settings,
    database: Database,
    secrets: SecretStore,
    tenants: Tenants,
    texts: LiveTexts | None = None,
    payloads: Payloads | None = None,
    is_provided: Callable[[str], Awaitable[bool]] | None = None,
) -> ModelGateway:
    """Return the gateway of a process with a database; without `payloads` there are no images, files or audio."""
    limits = PartLimits(settings.max_parts_bytes, frozenset(comma_separated(settings.http_fetch_allow_hosts)))
    egress = models.egress or Egress()
    return ModelGateway(
        models,
        keys=partial(_provider_key, secrets),
        may_name=partial(_may_name_model, tenants, settings.model),
        texts=texts,
        adaptations=AdaptationStore(database),
        parts=None if payloads is None else PartLoader(payloads, egress, limits),
        files=None if payloads is None else FileStore(_put(payloads), settings.max_output_bytes),
        is_elsewhere=None if is_provided is None else lambda place: is_provided(model_place(place)),
    )


def _put(payloads: Payloads) -> Put:
    return lambda tenant_id, body, preview: persist(payloads.put, tenant_id, body, preview)


def provided_models(settings: Settings) -> Sequence[str]:
    """Return what a worker publishes of the models that its settings give keys or addresses for."""
    models = model_settings(settings)
    places = sorted({*models.api_keys, *models.base_urls})
    return [model_place(place) for place in places if lacked(models, place, has_key=False) is None]


def require_key(settings: Settings, name: ModelName) -> None:
    """Raise `Misconfigured` where the default model's provider needs a key, an address or an SDK and has none."""
    models = model_settings(settings)
    provider = name.provider
    if provider is None:
        return
    if name.server and name.place not in models.base_urls:
        raise Misconfigured(f"PLANQ_MODEL is {name.full}: PLANQ_MODEL_SERVERS has no {name.place}")
    if missing := missing_sdk(provider):
        raise Misconfigured(f"PLANQ_MODEL is {name.full}: {missing}")
    if name.place not in models.api_keys and needs_key(provider, has_url=name.place in models.base_urls):
        raise Misconfigured(
            f"PLANQ_MODEL is {name.full}: set {key_name(name.place).upper()} to a key of its provider, or "
            "PLANQ_MODEL to offline"
        )


async def _may_name_model(tenants: Tenants, default: str, tenant_id: str, model: str) -> bool:
    config = (await persist(tenants.of, tenant_id)).config
    return may_name_model(tenant_id, config, model, default)


async def _provider_key(secrets: SecretStore, tenant_id: str, place: str) -> str | None:
    try:
        return await persist(secrets.get, tenant_id, key_name(place))
    except LackedHere:
        raise  # the work is handed back
    except Misconfigured as error:
        raise AuthFailed(error.message) from error
