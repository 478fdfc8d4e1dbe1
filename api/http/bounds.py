"""What one API process accepts and how long it waits. Tests change these attributes; nothing else does."""

from __future__ import annotations

MAX_PLAN_BYTES = 4 << 20
"""Largest body of a job, a fork or an output; a plan of 10,000 steps fits."""

MAX_BATCH_BYTES = 200 << 20
"""Largest upload of a batch; each line is a request body as well."""

MAX_BATCH_LINES = 50_000
"""Maximum number of lines of a batch."""

MAX_INPUT_BYTES = 100_000
"""Largest `input` of a job, as UTF-8."""

MAX_STREAMS = 2_500
"""Maximum number of event streams of a process; further ones are answered with 503."""

WAIT_POLL_SECONDS = 3.0
"""Longest delay of a waiting client when a notification is lost."""

DATABASE_TIMEOUT_SECONDS = 5.0
"""How long a request waits for a connection; then it is answered with 503."""

PAGE_SESSION_SECONDS = 43_200.0
"""Age at which the session of a page's visitor ends; the visitor has to log in again."""
