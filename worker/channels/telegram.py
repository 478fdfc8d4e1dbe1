"""Telegram: conversation messages become messages of a bot, questions become buttons.

The Bot API has no idempotency: a request without an answer is in doubt. The bot's token is in the address of every
request, so no error text of the HTTP client is passed on.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import orjson
from httpx2 import ConnectTimeout, HTTPError, InvalidURL, PoolTimeout, Timeout, WriteError, WriteTimeout

from planq.shared.platform.errors import (
    AuthFailed,
    ErrorRecord,
    ExecutionFailed,
    PlanqError,
    TimedOut,
    Transient,
    capped,
)
from planq.shared.subjects.channels.formatted import FormattedText, formatted, parts_of
from planq.shared.subjects.channels.telegram import BOT_SECRET, MAX_UNITS, chat_of, choices_of, press_data
from planq.shared.subjects.webhooks.rules import LONGEST_PAUSE, DeliveryOutcome, after_failure, handed_back
from planq.worker.channels.contract import Outgoing
from planq.worker.egress import UNSENT, AnswerBounds, BodyRefused, Egress, read_cut

if TYPE_CHECKING:
    from httpx2 import AsyncClient

FindsToken = Callable[[str, str], Awaitable[str | None]]
"""`(tenant, name of the secret) -> token`, None if the tenant has none; raises `Misconfigured`."""

UNCERTAIN = "uncertain"
_MAX_ANSWER_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class BotAnswer:
    """An answer of the Bot API; without a `status` it is unknown whether the request was carried out."""

    status: int | None
    document: Mapping[str, Any]

    @property
    def is_taken(self) -> bool:
        return self.document.get("ok") is True

    @property
    def description(self) -> str:
        text = self.document.get("description")
        return capped(text, 300) if isinstance(text, str) else ""

    def parameter(self, name: str) -> int | None:
        parameters = self.document.get("parameters")
        value = parameters.get(name) if isinstance(parameters, Mapping) else None
        return value if isinstance(value, int) else None


class BotApi:
    """Calls methods of the Bot API at `url`, which the operator has set: its host may be private."""

    def __init__(self, url: str, timeout: timedelta, egress: Egress | None = None) -> None:
        self._url = url.rstrip("/")
        self._seconds = timeout.total_seconds()
        self._egress = egress or Egress()
        self._allowed = frozenset({(urlsplit(url).hostname or "").lower()})

    async def call(self, token: str, method: str, arguments: Mapping[str, Any], *, wait: float = 0.0) -> BotAnswer:
        """Call a method; raise `Transient` or `TimedOut` if it was not carried out, or errors of the guard."""
        # Longer than the sum of the parts: only their timeouts say whether a request was sent.
        bounds = AnswerBounds(_MAX_ANSWER_BYTES, 2 * self._seconds + wait)
        timeout = Timeout(self._seconds + wait, connect=self._seconds)
        client = self._egress.guarded("Telegram", bounds, self._allowed, timeout=timeout)
        try:
            async with client:
                return await self._post(client, f"{self._url}/bot{token}/{method}", arguments)
        except (ConnectTimeout, PoolTimeout, WriteTimeout):
            raise TimedOut(f"Telegram took no request within {self._seconds:g} s") from None
        except (*UNSENT, WriteError) as error:
            raise Transient(f"Telegram could not be reached ({type(error).__name__})") from None
        except (HTTPError, TimeoutError):
            return BotAnswer(None, {})
        except (InvalidURL, UnicodeError):
            raise AuthFailed("the token of the bot is none that can stand in an address") from None

    async def _post(self, client: AsyncClient, url: str, arguments: Mapping[str, Any]) -> BotAnswer:
        headers = {"Content-Type": "application/json"}
        async with client.stream("POST", url, content=orjson.dumps(arguments), headers=headers) as response:
            try:
                body, _ = await read_cut(response)
                document = orjson.loads(body)
            except (BodyRefused, ValueError):
                document = {}
            return BotAnswer(response.status_code, document if isinstance(document, Mapping) else {})


class TelegramChannel:
    """Sends over the bots of all tenants; `draw` spreads the pauses between attempts."""

    def __init__(self, api: BotApi, token: FindsToken, draw: Callable[[], float]) -> None:
        self._api = api
        self._token = token
        self._draw = draw

    def render(self, outgoing: Outgoing) -> Sequence[Mapping[str, Any]]:
        """Return the messages: in a group the first one is a reply, the last one has the buttons of a question."""
        texts = parts_of(formatted(outgoing.text), MAX_UNITS)
        messages = [_message(text) for text in texts]
        if messages and (replied := _replied(outgoing)) is not None:
            messages[0]["reply_parameters"] = {"message_id": replied, "allow_sending_without_reply": True}
        if messages and (rows := _buttons(outgoing.question)):
            messages[-1]["reply_markup"] = {"inline_keyboard": rows}
        return messages

    async def send(self, outgoing: Outgoing, part: Mapping[str, Any]) -> DeliveryOutcome:
        """Make one attempt at a message; if the Bot API refuses its formats, send it as plain text."""
        try:
            token = await self._token(outgoing.delivery.tenant_id, BOT_SECRET)
            if token is None:
                raise AuthFailed(f"the tenant has no secret {BOT_SECRET}")
            place = chat_of(outgoing.thread)
            answer = await self._api.call(token, "sendMessage", {**place, **part})
            if answer.status == 400 and "entities" in part and "entit" in answer.description.lower():
                plain = {name: value for name, value in part.items() if name != "entities"}
                answer = await self._api.call(token, "sendMessage", {**place, **plain})
        except ValueError:
            return DeliveryOutcome(ErrorRecord("receiver_refused", "the thread is no chat of Telegram"))
        except ExecutionFailed as error:
            return self._failed(outgoing, ErrorRecord.of(error))
        except PlanqError as error:
            if error.code != "misconfigured":
                raise
            return handed_back(ErrorRecord(error.code, error.message, retryable=True))
        return self._outcome(outgoing, answer)

    async def show_typing(self, tenant_id: str, thread: str) -> None:
        """Show "typing" in a chat for 5 s; raise as `BotApi.call` does, and `ValueError` for an invalid thread."""
        token = await self._token(tenant_id, BOT_SECRET)
        if token is not None:
            await self._api.call(token, "sendChatAction", {**chat_of(thread), "action": "typing"})

    def _outcome(self, outgoing: Outgoing, answer: BotAnswer) -> DeliveryOutcome:
        status = answer.status
        if status is None:
            message = "Telegram gave no answer to a message that was sent; it may have arrived"
            outcome = self._failed(outgoing, ErrorRecord(UNCERTAIN, message, retryable=True))
            return replace(outcome, is_uncertain=True)
        if answer.is_taken:
            result = answer.document.get("result")
            id_ = result.get("message_id") if isinstance(result, Mapping) else None
            return DeliveryOutcome(response_status=status, external_id=None if id_ is None else str(id_))
        message = f"Telegram answered {status}: {answer.description or 'without a reason'}"
        if (moved := answer.parameter("migrate_to_chat_id")) is not None:
            return DeliveryOutcome(ErrorRecord("moved", message, retryable=True), moved_to=str(moved))
        if status == 429:
            return self._busy(outgoing, answer, message)
        if status >= 500:
            return self._failed(outgoing, ErrorRecord("receiver_failed", message, retryable=True), status)
        if status in (401, 404):
            problem = "Telegram refuses the token of the bot; store the present one as the secret " + BOT_SECRET
            return DeliveryOutcome(ErrorRecord(AuthFailed.code, problem), response_status=status, problem=problem)
        return DeliveryOutcome(ErrorRecord("receiver_refused", message), response_status=status)

    def _busy(self, outgoing: Outgoing, answer: BotAnswer, message: str) -> DeliveryOutcome:
        wait = min(timedelta(seconds=max(answer.parameter("retry_after") or 0, 1)), LONGEST_PAUSE)
        error = ErrorRecord("rate_limited", message, retryable=True)
        # A group has its own limit of 20 messages a minute; in other chats the bot as a whole sends too much.
        pause = None if outgoing.thread.startswith("-") else wait
        delivery = outgoing.delivery
        outcome = after_failure(error, delivery.tries, wait, self._draw(), answer.status, age=delivery.age)
        return replace(outcome, again=wait if outcome.is_wait else outcome.again, pause=pause)

    def _failed(self, outgoing: Outgoing, error: ErrorRecord, status: int | None = None) -> DeliveryOutcome:
        outcome = after_failure(error, outgoing.delivery.tries, None, self._draw(), status)
        return replace(outcome, problem=error.message) if error.code == AuthFailed.code else outcome


def _message(text: FormattedText) -> dict[str, Any]:
    entities = text.to_json()
    return {"text": text.text, **({"entities": entities} if entities else {})}


def _replied(outgoing: Outgoing) -> int | None:
    reply = outgoing.document["in_reply_to"] or {}
    metadata = (reply.get("metadata") or {}).get("telegram")
    message_id = (
        metadata.get("message_id") if isinstance(metadata, Mapping) and outgoing.thread.startswith("-") else None
    )
    return message_id if isinstance(message_id, int) else None


def _buttons(question: Mapping[str, Any] | None) -> list[list[dict[str, str]]]:
    if question is None:
        return []
    options = choices_of(question["kind"], question["schema"])
    buttons = [
        {"text": option.label, "callback_data": press_data(question["id"], number)}
        for number, option in enumerate(options)
    ]
    if len(buttons) <= 2:
        return [buttons] if buttons else []
    return [[button] for button in buttons]
