"""A server that speaks S3 on a free port of this machine, in a thread: moto's, for obstore to talk to."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

BUCKET = "planq"


@contextmanager
def s3_server() -> Iterator[dict[str, str]]:
    """Yield the `AWS_…` variables of a running server that has the bucket `BUCKET`."""
    from moto.server import ThreadedMotoServer  # late: it imports botocore

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        url = f"http://{host}:{port}"
        assert httpx.put(f"{url}/{BUCKET}", trust_env=False).is_success
        yield {
            "AWS_ENDPOINT_URL": url,
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
        }
    finally:
        server.stop()
