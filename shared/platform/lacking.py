"""What a worker may lack that another has; each publishes what it has."""

from __future__ import annotations

from planq.shared.platform.errors import AuthFailed, Misconfigured

PAYLOADS = "payloads"
"""Published by a worker with the object store of large outputs (`PLANQ_PAYLOADS`)."""


class LackedHere(Misconfigured):
    """This process lacks what another may have: its work is handed back, and no attempt counts."""


def as_failure(lacked: LackedHere) -> AuthFailed:
    """Return a step's failure; its cause says that another worker may succeed."""
    failure = AuthFailed(lacked.message)
    failure.__cause__ = lacked
    return failure


def model_place(place: str) -> str:
    """Return what a worker publishes for the models of `PROVIDER` or `PROVIDER@SERVER`."""
    return f"model {place}"
