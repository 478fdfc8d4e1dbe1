"""Statements for lists and documents that people look at, in terms of the models; by name, as in `sql/queries`.

A model is `Any` there: mypy takes its columns for the values of one row.
"""

from planq.shared.store.selects import (  # noqa: F401  (each names its statements)
    batches,
    conversations,
    elicitations,
    webhooks,
)
from planq.shared.store.selects.named import text_of

__all__ = ["text_of"]
