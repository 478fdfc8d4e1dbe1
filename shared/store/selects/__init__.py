"""Statements for lists and documents that people look at, in terms of the models; by name, as in `sql/queries`."""

from planq.shared.store.selects import webhooks  # noqa: F401  (names its statements)
from planq.shared.store.selects.named import text_of

__all__ = ["text_of"]
