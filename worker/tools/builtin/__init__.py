"""The tools that come with planq; registered through the entry point `planq.tools`, as any other package's.

| tool | effect | does |
|---|---|---|
| `calculate` | pure | safe arithmetic |
| `json_query` | pure | JMESPath over a value |
| `now` | read | the present moment, in UTC |
| `http_fetch` | read | one web page or JSON document, guarded against private addresses |
| `knowledge_search` | read | full-text search over the loaded documents |
| `write_report` | idempotent | a Markdown artifact |
| `wait` | idempotent | a durable timer; counts as a write so that it keeps its place between other steps |
"""

from worker.tools.builtin.arithmetic import calculate
from worker.tools.builtin.fetch import http_fetch
from worker.tools.builtin.knowledge import knowledge_search
from worker.tools.builtin.query import json_query
from worker.tools.builtin.report import write_report
from worker.tools.builtin.timer import now, wait

__all__ = ["calculate", "http_fetch", "json_query", "knowledge_search", "now", "wait", "write_report"]
