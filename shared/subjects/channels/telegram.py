"""Read Telegram's updates: a message, a button press, a moved group, or nothing.

Updates are untrusted: fields may be missing or of any type, and an update with wrong fields means nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from planq.shared.platform.errors import capped, storable

PROOF_HEADER = "X-Telegram-Bot-Api-Secret-Token"
BOT_SECRET = "telegram_token"  # noqa: S105
"""Name of the tenant's secret that holds its bot's token."""

BOT_API = "https://api.telegram.org"

MAX_UNITS = 4_096
"""Maximum length of a message, in UTF-16 units."""

MAX_BUTTONS = 20
_MAX_LABEL_CHARS = 60

UPDATE_KINDS = ("message", "edited_message", "callback_query")
"""The kinds of updates that planq asks for."""

_GROUPS = frozenset({"group", "supergroup"})
_FILES = ("document", "audio", "video", "voice", "video_note", "animation", "sticker")


@dataclass(frozen=True, slots=True)
class Bot:
    """The bot that gets the updates. In groups it `hears_all`, or only mentions of it and replies to it."""

    id: int
    username: str
    hears_all: bool = False


@dataclass(frozen=True, slots=True)
class PersonMessage:
    """A person's message, as a message document; the reply goes to `chat_id`."""

    document: Mapping[str, Any]
    chat_id: int


@dataclass(frozen=True, slots=True)
class ButtonPress:
    """A person pressed a button of a message in a thread."""

    id: str
    person: str
    thread: str
    data: str


@dataclass(frozen=True, slots=True)
class GroupMove:
    """A group got another id."""

    before: str
    after: str


@dataclass(frozen=True, slots=True)
class NoMessage:
    """An update with nothing for a model, and why."""

    reason: str


@dataclass(frozen=True, slots=True)
class Option:
    """A choice of a question: its button's label, and the answer that it gives."""

    label: str
    action: str
    content: Mapping[str, Any] | None = None


def read_update(update: Mapping[str, Any], bot: Bot) -> PersonMessage | ButtonPress | GroupMove | NoMessage:
    number = update.get("update_id")
    if not _is_number(number):
        return NoMessage("no update")
    if "callback_query" in update:
        return _press(_object(update["callback_query"]))
    kind = next((name for name in UPDATE_KINDS if name in update), None)
    if kind is None:
        return NoMessage(next((name for name in update if name != "update_id"), "empty"))
    message = _object(update[kind])
    chat, sender = _object(message.get("chat")), _object(message.get("from"))
    if not _is_number(chat.get("id")):
        return NoMessage("no chat")
    for name, moves in (("migrate_to_chat_id", True), ("migrate_from_chat_id", False)):
        if _is_number(other := message.get(name)):
            before, after = (chat["id"], other) if moves else (other, chat["id"])
            return GroupMove(str(before), str(after))
    if not _is_number(sender.get("id")) or sender.get("is_bot") is True:
        return NoMessage("no person")
    text = _words_of(message)
    if text is None:
        return NoMessage("a service message")
    is_group = isinstance(kind_of_chat := chat.get("type"), str) and kind_of_chat in _GROUPS
    if is_group and not (bot.hears_all or _concerns(message, bot)):
        return NoMessage("not addressed")
    return PersonMessage(_document(message, kind, text, f"{bot.id}:{number}"), chat["id"])


def thread_of(message: Mapping[str, Any]) -> str:
    """Return the thread of a message: its chat, or a topic of a group."""
    chat, topic = _object(message.get("chat")).get("id"), message.get("message_thread_id")
    is_topic = message.get("is_topic_message") is True and _is_number(topic)
    return f"{chat}/{topic}" if is_topic else str(chat)


def chat_of(thread: str) -> dict[str, int]:
    """Return the request fields that address a thread; raises `ValueError` for no chat."""
    chat, _, topic = thread.partition("/")
    return {"chat_id": int(chat), **({"message_thread_id": int(topic)} if topic else {})}


def choices_of(kind: str, schema: Any) -> Sequence[Option]:
    """Return the choices of a question that has few: yes or no, or the values of an enum; else none."""
    if kind == "approval":
        return [Option("Yes", "accept", {}), Option("No", "decline")]
    fields = _object(_object(schema).get("properties"))
    if kind != "form" or len(fields) != 1:
        return []
    ((name, field),) = fields.items()
    known = _object(field)
    if known.get("type") == "boolean":
        return [Option("Yes", "accept", {name: True}), Option("No", "accept", {name: False})]
    values = known.get("enum")
    if not isinstance(values, list) or not 0 < len(values) <= MAX_BUTTONS:
        return []
    if not all(isinstance(value, str | int | float) and str(value).strip() for value in values):
        return []
    return [Option(capped(str(value), _MAX_LABEL_CHARS), "accept", {name: value}) for value in values]


def press_data(question_id: str, number: int) -> str:
    """Return the data that a question's button sends: at most 64 bytes."""
    return f"q:{UUID(question_id).hex}:{number}"


def pressed(data: str) -> tuple[UUID, int] | None:
    """Return the question and the number of the choice from a button's data, None if it is not ours."""
    mark, _, rest = data.partition(":")
    question, _, number = rest.partition(":")
    try:
        return (UUID(hex=question), int(number)) if mark == "q" and number.isdecimal() and len(number) < 3 else None
    except ValueError:
        return None


def _press(query: Mapping[str, Any]) -> ButtonPress | NoMessage:
    message, person = _object(query.get("message")), _object(query.get("from")).get("id")
    id, data = query.get("id"), query.get("data")
    chat = _object(message.get("chat")).get("id")
    if not (isinstance(id, str) and isinstance(data, str) and _is_number(person) and _is_number(chat)):
        return NoMessage("no press")
    return ButtonPress(id, str(person), thread_of(message), data)


def _words_of(message: Mapping[str, Any]) -> str | None:
    """Return the text of a message with its attachments in words, None for neither."""
    words = next((text for name in ("text", "caption") if isinstance(text := message.get(name), str)), "")
    attached = [_shown(one) for one in attachments_of(message)]
    found = "\n".join(part for part in (words, *attached) if part.strip())
    return found or None


def _shown(attachment: Mapping[str, Any]) -> str:
    named = (f"{name} {value}" for name, value in attachment.items() if name != "kind")
    return f"[{attachment['kind']}: {', '.join(named)}]"


def attachments_of(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the files with their ids (of a photo the largest), places and contacts of a message."""
    attachments = []
    photos = message.get("photo")
    if isinstance(photos, list) and photos:
        attachments.append(_file("photo", _object(photos[-1])))
    attachments += [_file(name, _object(message[name])) for name in _FILES if isinstance(message.get(name), Mapping)]
    place = _object(message.get("location"))
    if place:
        fields = {name: place.get(name) for name in ("latitude", "longitude")}
        attachments.append({"kind": "location", **{name: value for name, value in fields.items() if _is_real(value)}})
    contact = _object(message.get("contact"))
    if contact:
        fields = {name: contact.get(name) for name in ("first_name", "phone_number")}
        attachments.append(
            {"kind": "contact", **{n: capped(v, 100) for n, v in fields.items() if isinstance(v, str)}}
        )
    return attachments


def _file(kind: str, file: Mapping[str, Any]) -> dict[str, Any]:
    texts = {name: file.get(name) for name in ("file_id", "file_name", "mime_type")}
    fields = {
        name: capped(" ".join(storable(text).split()), 200) for name, text in texts.items() if isinstance(text, str)
    }
    size = file.get("file_size")
    return {"kind": kind, **fields, **({"file_size": size} if _is_number(size) else {})}


def _document(message: Mapping[str, Any], kind: str, text: str, source: str) -> dict[str, Any]:
    sender, replied = _object(message["from"]), _object(message.get("reply_to_message"))
    names = (sender.get("first_name"), sender.get("last_name"))
    name = " ".join(" ".join(part for part in names if isinstance(part, str)).split())
    metadata = {
        "message_id": message.get("message_id"),
        "chat_type": _object(message.get("chat")).get("type"),
        "reply_to_message_id": replied.get("message_id"),
        "is_edited": kind == "edited_message" or None,
        "attachments": attachments_of(message) or None,
    }
    return {
        "thread": thread_of(message),
        "source_message_id": source,
        "from": {"external_id": str(sender["id"]), "display_name": capped(storable(name), 200) or None},
        "content": {"text": text},
        "metadata": {"telegram": {name: value for name, value in metadata.items() if value is not None}},
    }


def _concerns(message: Mapping[str, Any], bot: Bot) -> bool:
    """Whether a group message is for the bot: a reply to it, a mention, or its command."""
    if _object(_object(message.get("reply_to_message")).get("from")).get("id") == bot.id:
        return True
    mention = f"@{bot.username}".lower()
    for words, places in (("text", "entities"), ("caption", "caption_entities")):
        text, entities = message.get(words), message.get(places)
        if not isinstance(text, str) or not isinstance(entities, list):
            continue
        units = text.encode("utf-16-le", "surrogatepass")
        for one in map(_object, entities):
            if one.get("type") == "text_mention" and _object(one.get("user")).get("id") == bot.id:
                return True
            offset, length = one.get("offset"), one.get("length")
            if one.get("type") not in ("mention", "bot_command"):
                continue
            if isinstance(offset, int) and isinstance(length, int):
                named = units[2 * offset : 2 * (offset + length)].decode("utf-16-le", "replace").lower()
                if named.endswith(mention):
                    return True
    return False


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 63


def _is_real(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
