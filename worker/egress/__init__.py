"""All HTTP that workers send: bounds, time limits, authorities, proxies, and the guard of addresses.

No other package of planq makes an HTTP client for the outside (`tests/unit/test_house.py` checks it). Not HTTP
clients of ours, with settings of their own: the object store of payloads (obstore) and OpenTelemetry's exporter.
"""

from planq.worker.egress.bodies import (
    AnswerBounds,
    BodyDamaged,
    BodyRefused,
    BoundedBody,
    LeastRate,
    read_cut,
    words_of,
)
from planq.worker.egress.client import Egress
from planq.worker.egress.guard import (
    GuardedTransport,
    HostPlaces,
    OwnAddresses,
    Resolver,
    resolve_with_system,
    retry_after,
)
from planq.worker.egress.proxies import FROM_ENVIRONMENT, Proxies, read_proxies
from planq.worker.egress.wire import UNSENT, tls_of

__all__ = [
    "FROM_ENVIRONMENT",
    "UNSENT",
    "AnswerBounds",
    "BodyDamaged",
    "BodyRefused",
    "BoundedBody",
    "Egress",
    "GuardedTransport",
    "HostPlaces",
    "LeastRate",
    "OwnAddresses",
    "Proxies",
    "Resolver",
    "read_cut",
    "read_proxies",
    "resolve_with_system",
    "retry_after",
    "tls_of",
    "words_of",
]
