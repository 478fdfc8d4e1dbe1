"""How the crash points of webhooks are reached; part of `reaching.REACH`."""

from __future__ import annotations

import base64

from standardwebhooks import Webhook

from planq.shared.domain.tenants.master_keys import read_master_keys
from planq.shared.store.signing import SigningSecrets
from tests.faults.scene import PATIENCE, Scene
from tests.support.receiver import receiving
from tests.support.waiting import eventually

KEY = base64.b64encode(b"k" * 32).decode()
_IN_BETWEEN = ("poster.send:after", "deliveries.finish:before")
"""The receiver has taken it, and nothing says so."""


def told(scene: Scene, point: str) -> None:
    """A worker dies while it tells of a job's end: it is told under one id, and twice where nobody could know."""
    env = {"PLANQ_SECRET_KEYS": KEY, "PLANQ_WEBHOOK_ALLOW_HOSTS": "127.0.0.1"}
    with receiving() as receiver:
        job_id = scene.submit(("fault_note", {"text": "a"}), callback_url=receiver.url)
        scene.died_at(point, **env)
        scene.worker(**env)
        scene.completes(job_id, "<a>")
        sent = "SELECT id FROM deliveries WHERE status = 'sent'"
        rows = eventually(lambda: scene.read(sent), PATIENCE, what="the delivery is sent")
        seen = list(receiver.seen)
    assert [row["id"] for row in scene.read("SELECT id FROM deliveries")] == [row["id"] for row in rows]
    assert [one.headers["webhook-id"] for one in seen] == [str(rows[0]["id"])] * (1 + (point in _IN_BETWEEN))
    (secret,) = scene.caller.do(SigningSecrets(scene.caller.database, read_master_keys(KEY)).of("default", None))
    for one in seen:
        body = Webhook(secret).verify(one.body, one.headers)
        assert (body["type"], body["data"]["id"]) == ("job.completed", str(job_id))


TELLING = {"deliveries.claim": told, "deliveries.finish": told, "poster.send": told}
