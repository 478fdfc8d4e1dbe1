"""Telegram's webhook: updates of a tenant's bot, which its secret token proves to be Telegram's.

Telegram posts an update again until it is answered by 200, and the next ones wait behind it. So 200 comes after the
commit, and for whatever will never be taken; only while the database is away the answer is 503. What is to be said at
once, that a button was pressed, stands in the answer itself: the token of the bot is not needed here.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from planq.api.channels.receiving import ChannelReceiver, Post, message_of
from planq.api.deps import Services, Use, strict_router
from planq.api.http.exchange import HttpRefusal, JsonResponse
from planq.api.schemas import AnswerRequest
from planq.shared.agentic.turns.channel_kinds import ChannelKind
from planq.shared.kernel.ids import TENANT
from planq.shared.platform.errors import (
    Conflict,
    InvalidRequest,
    NotAsked,
    NotFound,
    PlanqError,
    SecretInChat,
    Unavailable,
)
from planq.shared.subjects.channels.telegram import (
    PROOF_HEADER,
    Bot,
    ButtonPress,
    GroupMove,
    NoMessage,
    PersonMessage,
    choices_of,
    pressed,
    read_update,
)
from planq.shared.subjects.tenants.secrecy import NOT_IN_A_CHAT

telegram_routes = strict_router("channels")

TELEGRAM = ChannelKind.TELEGRAM.value
_MEANINGS = {PersonMessage: "message", ButtonPress: "answer", GroupMove: "move", NoMessage: "nothing"}
_log = logging.getLogger("planq.channels")
_CLOSED = "This question is not open any more."
_OTHERS = "This question is for somebody else."
_BUSY = "I cannot take this message now. Please send it again later."


@telegram_routes.post("/webhooks/telegram", include_in_schema=False)
@telegram_routes.post("/webhooks/telegram/{tenant}", include_in_schema=False)
async def post_update(request: Request, services: Use) -> Response:
    """Take an update of the bot of a tenant, which is `default` if the path names none.

    Raises `HttpRefusal` (403) unless the secret is right, and `Unavailable` so that Telegram sends the update again.
    """
    tenant = request.path_params.get("tenant", TENANT)
    post, bot = await _proved(services, tenant, request.headers.get(PROOF_HEADER, ""))
    update = await request.json()
    if not isinstance(update, dict):
        raise InvalidRequest("expected an update of Telegram, a JSON object")
    meant = read_update(update, bot)
    services.metrics.update_came(TELEGRAM, _MEANINGS[type(meant)])
    try:
        return JsonResponse(await _done(services, post, meant))
    except Unavailable:
        raise
    except (PlanqError, HttpRefusal) as error:
        _log.warning("telegram_update_refused", extra={"tenant": tenant, "cause": str(error)})
        if isinstance(meant, PersonMessage) and isinstance(error, (Conflict, SecretInChat)):
            text = NOT_IN_A_CHAT if isinstance(error, SecretInChat) else _BUSY
            return JsonResponse({"method": "sendMessage", "chat_id": meant.chat_id, "text": text})
        return JsonResponse({})


_Meaning = PersonMessage | ButtonPress | GroupMove | NoMessage


async def _proved(services: Services, tenant: str, token: str) -> tuple[Post, Bot]:
    """Return who posts, and the tenant's bot; raises `HttpRefusal` (403) unless the secret `token` is right."""
    found = await services.channels.find(tenant, TELEGRAM)
    expected = (found.secret_hash if found is not None else None) or ""
    digest = hashlib.sha256(token.encode("latin-1", "replace")).hexdigest()
    is_right = hmac.compare_digest(digest, expected.ljust(len(digest), "-"))
    if found is None or not is_right or found.kind is not ChannelKind.TELEGRAM:
        message = f"expected the header {PROOF_HEADER} with the secret token of the tenant's webhook"
        raise HttpRefusal(403, "not_proved", message)
    config = found.config
    bot = Bot(config["bot_id"], config["username"], config.get("groups") == "all")
    return await services.subject(ChannelReceiver).post_of(tenant, TELEGRAM), bot


async def _done(services: Services, post: Post, meant: _Meaning) -> dict[str, Any]:
    """Do what an update means; returns the call of the Bot API that answers it."""
    match meant:
        case PersonMessage():
            verdict = await services.limits.check(post.tenant.id, TELEGRAM, post.tenant.config)
            delay = 0 if verdict.is_allowed else 1_000 * verdict.retry_after
            received = await services.subject(ChannelReceiver).receive(post, message_of(post, meant.document), delay)
            is_to_come = received.begins or received.answered is not None
            return {"method": "sendChatAction", "chat_id": meant.chat_id, "action": "typing"} if is_to_come else {}
        case ButtonPress():
            reply = await _pressed(services, post, meant)
            return {"method": "answerCallbackQuery", "callback_query_id": meant.id, "text": reply}
        case GroupMove():
            await services.channels.move(post.tenant.id, TELEGRAM, meant.before, meant.after)
            return {}
        case NoMessage():
            _log.info("telegram_update_ignored", extra={"tenant": post.tenant.id, "reason": meant.reason})
            return {}


async def _pressed(services: Services, post: Post, press: ButtonPress) -> str:
    found = pressed(press.data)
    if found is None:
        return _CLOSED
    question_id, number = found
    try:
        question = await services.subject(ChannelReceiver).question_of(post, question_id)
        options = choices_of(question["kind"], question["schema"])
        if number >= len(options) or not await services.channels.asks_in(
            post.tenant.id, TELEGRAM, press.thread, question["root_job_id"]
        ):
            return _CLOSED
        option = options[number]
        given = AnswerRequest(action=option.action, content=option.content, by=press.person, channel=TELEGRAM)
        await services.subject(ChannelReceiver).answer(post, question, given)
    except (NotFound, Conflict, SecretInChat):
        return _CLOSED
    except NotAsked:
        return _OTHERS
    return f"Noted: {option.label}"
