"""States of batches and of their lines. The SQL functions decide what follows; this is the picture of it.

    batch  uploading → validating → in_progress → completed | failed | cancelled
                            └────────────┴──────▶ cancelling → cancelled
    line   received → invalid | valid → admitted → completed | failed | cancelled

A batch is paused beside its status, and says why. A line is no job until it is admitted.
"""

from __future__ import annotations

from enum import StrEnum


class BatchStatus(StrEnum):
    """Where a batch stands."""

    UPLOADING = "uploading"  # its lines are being stored; without a fresh lease it is removed
    VALIDATING = "validating"
    IN_PROGRESS = "in_progress"
    CANCELLING = "cancelling"  # nothing of it begins any more, and what runs is being cancelled
    COMPLETED = "completed"  # every valid line has ended, failed ones among them
    FAILED = "failed"  # none of its lines was run: they were not valid
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        """True when the batch has ended; only a retry of its lines moves it on."""
        return self in TERMINAL_BATCH


class LineStatus(StrEnum):
    """Where a line of a batch stands."""

    RECEIVED = "received"
    INVALID = "invalid"
    VALID = "valid"  # it waits to be admitted
    ADMITTED = "admitted"  # it is a job
    COMPLETED = "completed"  # with an error where its job is partial
    FAILED = "failed"
    CANCELLED = "cancelled"


class Discount(StrEnum):
    """How model calls of a batch become cheaper."""

    PROVIDER = "provider"  # lines of one model call go through the provider's batch API


class ProviderBatchStatus(StrEnum):
    """Where a provider's batch stands."""

    SUBMITTING = "submitting"  # the provider may or may not know it yet
    SUBMITTED = "submitted"
    ENDED = "ended"  # each of its calls has a result, or will get none


class PauseReason(StrEnum):
    """Why nothing more of a batch is admitted."""

    ASKED = "asked"  # by a person, also with `start=false`
    CANARY = "canary"  # its first lines have ended, and somebody looks at them
    BUDGET = "budget"  # what is left of its budget does not suffice for the next line


TERMINAL_BATCH = frozenset({BatchStatus.COMPLETED, BatchStatus.FAILED, BatchStatus.CANCELLED})
