"""Submits a job to the API at argv[1] by the client that openapi-python-client has made, and prints its answer."""

import sys
from uuid import UUID

from planq_client import Client
from planq_client.api.jobs import get_job, submit_job
from planq_client.models import JobDocument, JobRequest

client = Client(base_url=sys.argv[1], raise_on_unexpected_status=True)
job = submit_job.sync(client=client, body=JobRequest(input_="calculate 6*7"), idempotency_key="generated")
assert isinstance(job, JobDocument), job
ended = get_job.sync(UUID(str(job.id)), client=client, wait=30)
assert isinstance(ended, JobDocument), ended
print(ended.status.value, ended.answer)  # noqa: T201 - a script
