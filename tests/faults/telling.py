"""How the crash points of webhooks and replies are reached; part of `reaching.REACH`."""

from __future__ import annotations

import base64
import hashlib

import httpx
from standardwebhooks import Webhook

from planq.shared.agentic.references.resolution import as_called
from planq.shared.agentic.turns.channel_kinds import ChannelKind
from planq.shared.kernel.new_ids import new_id
from planq.shared.kernel.states import JobStatus
from planq.shared.kernel.store.transitions import PostgresJobStore
from planq.shared.platform.database import Database
from planq.shared.subjects.channels.formatted import formatted
from planq.shared.subjects.channels.store import ChannelStore
from planq.shared.subjects.channels.telegram import BOT_SECRET, PROOF_HEADER
from planq.shared.subjects.conversations.store import ConversationStore, InboundResult
from planq.shared.subjects.tenants.master_keys import read_master_keys
from planq.shared.subjects.tenants.secrets import SecretStore
from planq.shared.subjects.webhooks.signing import SigningSecrets
from tests.faults.conversing import says
from tests.faults.scene import PATIENCE, Scene
from tests.support.bot_api import TOKEN, BotServer, Reply, bot_server, refused
from tests.support.claiming import claim_stage
from tests.support.receiver import receiving
from tests.support.updates import said
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


PROOF = "the-secret-token"


def bot_of(scene: Scene, server: BotServer) -> dict[str, str]:
    """Give the tenant a bot; returns the settings of who sends over it."""
    database, kind = scene.caller.database, ChannelKind.TELEGRAM
    scene.caller.do(SecretStore(database, read_master_keys(KEY)).put("default", BOT_SECRET, TOKEN))
    config, digest = {"bot_id": 42, "username": "bot"}, hashlib.sha256(PROOF.encode()).hexdigest()
    scene.caller.do(ChannelStore(database).connect("default", kind, kind, config, digest))
    return {"PLANQ_SECRET_KEYS": KEY, "PLANQ_TELEGRAM_URL": server.url}


def replied(scene: Scene, point: str, *replies: Reply, chat: str = "7") -> list[str]:
    """A worker dies while it sends the reply to a message over Telegram; returns what was sent, in its order."""
    with bot_server(*replies) as server:
        env = bot_of(scene, server)
        database, kind = scene.caller.database, ChannelKind.TELEGRAM
        asked = says(scene, "x", publish=False, channel=kind, thread=chat)
        scene.caller.do(_answered(database, asked, "\n\n".join(letter * 3_000 for letter in "ab")))
        scene.died_at(point, **env)
        scene.worker(**env)
        sent = "SELECT id FROM deliveries WHERE status = 'sent' AND conversation_id = %s"
        eventually(lambda: scene.read(sent, asked.conversation_id), PATIENCE, what="the reply is sent")
        return [given["text"] for given in server.sent]


async def _answered(database: Database, said: InboundResult, text: str) -> None:
    """Answer a message as a worker does, and settle its turn."""
    assert said.job_id is not None
    store = PostgresJobStore(database, new_id(), as_called)
    claim = await claim_stage(store, said.job_id, [JobStatus.QUEUED])
    assert claim is not None
    assert await store.end_job(claim, JobStatus.COMPLETED, text, None, [])
    await ConversationStore(database).settle(said.job_id)


def part_by_part(scene: Scene, point: str) -> None:
    """Recipe: a worker dies between two parts; the first one comes twice where nobody could know that it had come."""
    texts = replied(scene, point)
    assert [text[0] for text in texts] == (["a", "a", "b"] if point.endswith(":before") else ["a", "b"])


def moved(scene: Scene, point: str) -> None:
    """Recipe: a worker dies while it learns that a group has another id; the reply goes there."""
    refusal = refused(400, "Bad Request: group chat was upgraded", migrate_to_chat_id=-1005)
    replied(scene, point, *[refusal] * (2 if point.endswith(":before") else 1), chat="-5")
    assert scene.read("SELECT id FROM conversations WHERE thread = '-1005'")


def a_reply_that_may_have_arrived_is_sent_again(scene: Scene) -> None:
    """The worker dies between Telegram's answer and its own commit."""
    texts = replied(scene, "poster.send:after")
    assert [text[0] for text in texts] == ["a", "b", "b"], "the first part was known to have arrived"
    assert [row["doubts"] for row in scene.read("SELECT doubts FROM deliveries")] == [1]


def five_turns_over_telegram_are_answered_in_order_though_each_worker_is_killed(scene: Scene) -> None:
    """Every update comes twice, and each turn's worker is killed in the middle."""
    with bot_server() as server:
        env = bot_of(scene, server)
        name = scene.worker(**env)
        scene.api(**env)
        eventually(lambda: scene.read("SELECT 1 FROM tools"), PATIENCE, what="the worker has published its tools")
        for number in range(5):
            update = said(f'call fault_hold with {{"until": "go-{number}"}}', update_id=number + 1)
            for _ in range(2):
                taken = httpx.post(
                    f"{scene.stack.url}/webhooks/telegram",
                    json=update,
                    headers={PROOF_HEADER: PROOF},
                    timeout=PATIENCE,
                )
                assert taken.status_code == 200, taken.text
            scene.eventually_running("fault_hold", 1)
            if not number:
                eventually(
                    lambda: ("sendChatAction", {"chat_id": 7, "action": "typing"}) in server.calls,
                    PATIENCE,
                    what="the worker shows in the chat that it types",
                )
            scene.stack.kill(name)
            (scene.folder / f"go-{number}").touch()
            name = scene.worker(**env)
            eventually(lambda sent=number + 1: len(server.sent) == sent, PATIENCE, what="the reply has come")
        texts = [given["text"] for given in server.sent]
    assert ["attempt 2" in text for text in texts] == [True] * 5, texts
    answers = scene.read("SELECT text FROM conversation_messages WHERE direction = 'outbound' ORDER BY sequence")
    assert [formatted(row["text"]).text for row in answers] == texts
    scene.sound()


TELLING = {
    "deliveries.claim": told,
    "deliveries.finish": told,
    "deliveries.note_part": part_by_part,
    "deliveries.move_thread": moved,
    "poster.send": told,
}
