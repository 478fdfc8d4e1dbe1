"""What one worker may lack that another has, by their own configurations; each publishes what it has."""

from __future__ import annotations

from planq.shared.platform.errors import AuthFailed, Misconfigured

PAYLOADS = "payloads"
"""Published by a worker that can read the object store of large outputs (`PLANQ_PAYLOADS`)."""


class LackedHere(Misconfigured):
    """This process lacks what another may have, so work that needs it is handed back, and no attempt is counted."""


def as_failure(lacked: LackedHere) -> AuthFailed:
    """Return the failure of a step for what its worker lacks; its cause says that another worker may have it."""
    failure = AuthFailed(lacked.message)
    failure.__cause__ = lacked
    return failure


def model_place(place: str) -> str:
    """Return what a worker publishes that can call the models of `PROVIDER` or `PROVIDER@SERVER`."""
    return f"model {place}"
