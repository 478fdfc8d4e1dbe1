"""What Telegram's updates mean, and what its questions look like; updates are made by python-telegram-bot."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis.strategies import dictionaries, integers, lists, none, recursive, sampled_from, text
from telegram import Chat, Contact, Document, Location, Message, PhotoSize, Sticker, Voice

from planq.shared.subjects.channels.telegram import (
    Bot,
    ButtonPress,
    GroupMove,
    NoMessage,
    PersonMessage,
    chat_of,
    choices_of,
    press_data,
    pressed,
    read_update,
)
from tests.support.updates import ADA, PLANQ, WHEN, press, said

BOT = Bot(42, "planq_bot")


def message(update: dict[str, Any], bot: Bot = BOT) -> PersonMessage:
    found = read_update(update, bot)
    assert isinstance(found, PersonMessage), found
    return found


def words(update: dict[str, Any]) -> str:
    found: str = message(update).document["content"]["text"]
    return found


def test_a_message_is_of_its_chat_and_known_by_bot_and_update() -> None:
    found = message(said("hello", update_id=5))
    assert found.chat_id == 7
    assert found.document == {
        "thread": "7",
        "source_message_id": "42:5",
        "from": {"external_id": "7", "display_name": "Ada Lovelace"},
        "content": {"text": "hello"},
        "metadata": {"telegram": {"message_id": 11, "chat_type": "private"}},
    }


def test_an_edited_message_and_a_reply_keep_their_links() -> None:
    before = Message(10, WHEN, Chat(7, "private"), from_user=PLANQ, text="x")
    told = message(said("no, this", kind="edited_message", reply_to_message=before)).document["metadata"]["telegram"]
    assert (told["is_edited"], told["reply_to_message_id"], told["message_id"]) == (True, 10, 11)


def test_what_is_attached_is_told_in_words_and_kept() -> None:
    photo = (PhotoSize("small", "a", 1, 1), PhotoSize("large", "b", 9, 9, file_size=99))
    assert words(said(caption="look", photo=photo)) == "look\n[photo: file_id large, file_size 99]"
    document = Document("f1", "u", file_name="re\nport.pdf", mime_type="application/pdf", file_size=5)
    told = "[document: file_id f1, file_name re port.pdf, mime_type application/pdf, file_size 5]"
    assert words(said(document=document)) == told
    assert words(said(voice=Voice("v1", "u", 3))) == "[voice: file_id v1]"
    assert words(said(location=Location(10.5, 59.9))) == "[location: latitude 59.9, longitude 10.5]"
    assert words(said(contact=Contact("+47", "Bo"))) == "[contact: first_name Bo, phone_number +47]"
    sticker = Sticker("s1", "u", 1, 1, is_animated=False, is_video=False, type="regular")
    assert words(said(sticker=sticker)) == "[sticker: file_id s1]"


def test_in_a_group_only_what_is_for_the_bot_is_heard_unless_it_hears_all() -> None:
    assert read_update(said("hi", chat=-5), BOT) == NoMessage("not addressed")
    assert message(said("hi", chat=-5, mentions=True)).document["thread"] == "-5"
    message(said("hi", chat=-5), Bot(42, "planq_bot", hears_all=True))
    before = Message(10, WHEN, Chat(-5, "supergroup"), from_user=PLANQ, text="x")
    message(said("yes", chat=-5, reply_to_message=before))
    assert isinstance(read_update(said("hi", chat=-5, mentions=True), Bot(42, "other_bot")), NoMessage)


def test_a_topic_is_a_thread_of_its_own() -> None:
    found = message(said("hi", chat=-5, mentions=True, message_thread_id=3, is_topic_message=True))
    assert found.document["thread"] == "-5/3"
    assert chat_of("-5/3") == {"chat_id": -5, "message_thread_id": 3}
    assert chat_of("7") == {"chat_id": 7}
    with pytest.raises(ValueError, match="invalid literal"):
        chat_of("t")


def test_a_group_that_migrates_says_so_on_both_sides() -> None:
    assert read_update(said(chat=-5, migrate_to_chat_id=-1005), BOT) == GroupMove("-5", "-1005")
    assert read_update(said(chat=-1005, migrate_from_chat_id=-5), BOT) == GroupMove("-5", "-1005")


def test_what_says_nothing_to_a_model_is_no_message() -> None:
    for update in (
        {"update_id": 1, "poll": {"id": "1", "question": "?", "options": []}},
        said("x", kind="channel_post"),
        said("x", person=PLANQ),
        said(),
        {},
        {"update_id": 1},
        {"update_id": 1, "message": {}},
        {"update_id": 1, "message": 7},
        {"update_id": True, "message": {"chat": {"id": 1}, "from": {"id": 1}, "text": "x"}},
        {"update_id": 1, "callback_query": None},
    ):
        assert isinstance(read_update(update, BOT), NoMessage), update


def test_a_press_tells_who_and_where() -> None:
    question = str(uuid4())
    data = press_data(question, 19)
    assert len(data.encode()) <= 64
    found = read_update(press(data), BOT)
    assert found == ButtonPress("cb1", str(ADA.id), "7", data)
    assert [str(part) for part in pressed(data) or ()] == [question, "19"]
    for other in ("", "q:", "q:x:1", f"r:{data[2:]}", f"{data}0000", "q:" + "0" * 32 + ":-1", "\x00"):
        assert pressed(other) is None


def test_a_question_with_few_answers_has_choices() -> None:
    def form(**fields: Any) -> list[tuple[str, Any]]:
        return [(one.label, one.content) for one in choices_of("form", {"properties": fields})]

    assert [(one.label, one.action) for one in choices_of("approval", None)] == [("Yes", "accept"), ("No", "decline")]
    assert form(x={"type": "boolean"}) == [("Yes", {"x": True}), ("No", {"x": False})]
    assert form(x={"enum": ["red", 2]}) == [("red", {"x": "red"}), ("2", {"x": 2})]
    assert form(x={"type": "string"}) == []
    assert form(x={"enum": ["a"]}, y={"type": "string"}) == []
    assert form(x={"enum": list(range(21))}) == []
    assert form(x={"enum": [" "]}) == form(x={"enum": [None]}) == form(x={"enum": "ab"}) == []
    assert [choices_of(kind, {}) for kind in ("url", "outcome", "form")] == [[], [], []]
    (label, content), *_ = form(x={"enum": ["y" * 100]})
    assert len(label) <= 100
    assert content == {"x": "y" * 100}


NAMES = (
    "update_id",
    "message",
    "chat",
    "from",
    "id",
    "text",
    "entities",
    "callback_query",
    "photo",
    "document",
    "data",
)
ANYTHING = recursive(
    none() | integers() | text(max_size=3),
    lambda inner: lists(inner, max_size=2) | dictionaries(sampled_from(NAMES), inner),
)


@given(dictionaries(sampled_from(NAMES), ANYTHING))
def test_whatever_comes_means_something_or_nothing(update: dict[str, Any]) -> None:
    read_update({"update_id": 1, **update}, BOT)
