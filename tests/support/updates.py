"""Updates as Telegram makes them: python-telegram-bot's own types are what they are made of."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from telegram import CallbackQuery, Chat, Message, MessageEntity, Update, User

WHEN = datetime(2026, 11, 27, tzinfo=UTC)
ADA = User(7, "Ada", is_bot=False, last_name="Lovelace")
BOB = User(8, "Bob", is_bot=False)
PLANQ = User(42, "Bot", is_bot=True, username="planq_bot")


def said(
    text: str | None = None,
    *,
    update_id: int = 1,
    id: int = 11,
    person: User = ADA,
    chat: int = 7,
    kind: str = "message",
    mentions: bool = False,
    **fields: Any,
) -> dict[str, Any]:
    """An update with a message; a negative chat is a group."""
    where = Chat(chat, Chat.SUPERGROUP if chat < 0 else Chat.PRIVATE)
    if mentions:
        text = f"@planq_bot {text}"
        fields["entities"] = [MessageEntity(MessageEntity.MENTION, 0, 10)]
    message = Message(id, WHEN, where, from_user=person, text=text, **fields)
    return Update(update_id, **{kind: message}).to_dict()


def press(data: str, *, person: User = ADA, chat: int = 7, update_id: int = 50) -> dict[str, Any]:
    """An update with the press of a button."""
    message = Message(99, WHEN, Chat(chat, Chat.PRIVATE), from_user=PLANQ, text="?")
    return Update(update_id, callback_query=CallbackQuery("cb1", person, "x", message=message, data=data)).to_dict()
