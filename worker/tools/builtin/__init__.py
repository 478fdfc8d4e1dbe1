"""The tools that come with planq; registered through the entry point `planq.tools`, as any other package's.

| tool | effect | does |
|---|---|---|
| `calculate` | pure | safe arithmetic |
| `json_query` | pure | JMESPath over a value |
| `now` | read | the present moment, in UTC |
| `http_fetch` | read | one web page or JSON document, guarded against private addresses |
| `knowledge_search` | read | full-text search over the loaded documents |
| `write_report` | idempotent | a Markdown artifact |
| `search` | read | full-text search over documents and moments |
| `web_search` | read | the web, through the operator's search service |
| `get_moments` | read | a user's moments |
| `save_moments` | idempotent | keeps moments |
| `update_user_metadata` | idempotent | changes what is kept of a user |
| `action` | idempotent | emits a structured event |
| `remind_me` | idempotent | schedules a job |
| `telegram_file` | read | a file that was sent to the tenant's Telegram bot |
| `wait` | idempotent | a durable timer; counts as a write so that it keeps its place between other steps |
"""

from planq.worker.tools.builtin.fetch import http_fetch
from planq.worker.tools.builtin.moments import action, get_moments, save_moments, update_user_metadata
from planq.worker.tools.builtin.pure import calculate, json_query
from planq.worker.tools.builtin.report import write_report
from planq.worker.tools.builtin.search import knowledge_search, search
from planq.worker.tools.builtin.telegram import telegram_file
from planq.worker.tools.builtin.timing import now, remind_me, wait
from planq.worker.tools.builtin.web import web_search

__all__ = [
    "action",
    "calculate",
    "get_moments",
    "http_fetch",
    "json_query",
    "knowledge_search",
    "now",
    "remind_me",
    "save_moments",
    "search",
    "telegram_file",
    "update_user_metadata",
    "wait",
    "web_search",
    "write_report",
]
