"""A model call that waits for a provider's batch: what is sent there, and what came back."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class CallStatus(StrEnum):
    """Where a deferred call stands."""

    WAITING = "waiting"  # it is collected for a provider's batch
    SENT = "sent"  # it belongs to a provider's batch
    SUCCEEDED = "succeeded"
    ERRORED = "errored"  # the provider answered it with an error
    EXPIRED = "expired"  # the provider did not run it in time
    CANCELED = "canceled"  # its batch was cancelled before the provider ran it
    FAILED = "failed"  # its batch failed as a whole

    @property
    def is_open(self) -> bool:
        return self in (CallStatus.WAITING, CallStatus.SENT)


@dataclass(frozen=True, slots=True)
class Deferral:
    """What is known of a call that may wait; `status` is None before it was deferred.

    `model` is whom it was meant for. `result` is the provider's own JSON, or for a `failed` one a sentence.
    """

    status: CallStatus | None = None
    model: str | None = None
    result: str | None = None


@dataclass(frozen=True, slots=True)
class DeferredCall:
    """A request in a provider's terms. Calls of one `model` and `scope` may be sent in one batch."""

    model: str
    scope: str
    body: str


class CallDeferred(Exception):
    """The stage goes no further here: its call waits for a provider's batch.

    `call` is what is to be sent, None where that is stored already.
    """

    def __init__(self, call: DeferredCall | None) -> None:
        super().__init__("the call waits for a provider's batch")
        self.call = call
