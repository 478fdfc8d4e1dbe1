"""Registers the selects of lists and documents, for those who can afford SQLAlchemy, so not workers.

A model is `Any` in these files: mypy takes its columns for the values of one row.
"""

from planq.shared.platform.selects import text_of
from planq.shared.subjects.batches import listings as batches
from planq.shared.subjects.conversations import listings as conversations
from planq.shared.subjects.questions import listings as questions
from planq.shared.subjects.webhooks import listings as webhooks

__all__ = ["batches", "conversations", "questions", "text_of", "webhooks"]
