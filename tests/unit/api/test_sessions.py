"""Sessions of the page: nobody else makes one, and each ends."""

from __future__ import annotations

import base64

from planq.api.access.sessions import LIFETIME_SECONDS, Sessions, cookie_of

NOW = 1_000_000.0
OURS = Sessions(["master", "postgresql://planq"])


def test_a_session_is_read_until_it_ends() -> None:
    session = OURS.begin(b"d" * 32, NOW)
    text = OURS.text(session)

    assert OURS.read(text, NOW + LIFETIME_SECONDS - 1) == session
    assert OURS.read(text, NOW + LIFETIME_SECONDS) is None
    assert OURS.read(OURS.text(OURS.begin(None, NOW)), NOW) is not None


def test_a_session_that_was_changed_or_made_elsewhere_is_none() -> None:
    session = OURS.begin(b"d" * 32, NOW)
    raw = base64.urlsafe_b64decode(OURS.text(session) + "==")
    for place in range(len(raw)):
        changed = raw[:place] + bytes([raw[place] ^ 1]) + raw[place + 1 :]
        assert OURS.read(base64.urlsafe_b64encode(changed).decode(), NOW) is None
    assert OURS.read(Sessions(["another"]).text(session), NOW) is None
    for text in ("", "x", "ä", "=" * 100, "A" * 10_000):
        assert OURS.read(text, NOW) is None


def test_a_token_is_good_for_its_own_session_alone() -> None:
    mine, other = OURS.begin(b"d" * 32, NOW), OURS.begin(b"d" * 32, NOW)
    token = OURS.token(mine)

    assert OURS.has_token(mine, token)
    assert OURS.has_token(mine._replace(ends_at=mine.ends_at + 9), token), "forms outlive a renewal"
    assert not OURS.has_token(other, token)
    assert not OURS.has_token(mine._replace(digest=b"e" * 32), token)
    assert not OURS.has_token(None, token)
    assert not OURS.has_token(mine, "ä")


def test_the_cookie_is_found_among_others() -> None:
    assert cookie_of({b"cookie": b"a=1; planq_session=xyz; b=2"}, "planq_session") == "xyz"
    for fields in ({b"cookie": b"a=1"}, {}, {b"cookie": b"\xff\x00=;;"}):
        assert cookie_of(fields, "planq_session") == ""


def test_a_session_ends_for_good_however_it_is_renewed() -> None:
    sessions = Sessions(["master"], 3 * LIFETIME_SECONDS)
    session, now = sessions.begin(b"d" * 32, NOW), NOW
    for _ in range(20):
        now = min(now + LIFETIME_SECONDS / 2, NOW + 3 * LIFETIME_SECONDS - 1)
        assert sessions.read(sessions.text(session), now) == session
        session = sessions.renewed(session, now)
    assert sessions.read(sessions.text(session), NOW + 3 * LIFETIME_SECONDS) is None
    assert Sessions(["master"], LIFETIME_SECONDS).read(sessions.text(session), now) is None, "a shorter one counts"


def test_the_name_of_a_cookie_is_of_one_installation_and_says_how_it_is_sent() -> None:
    other = Sessions(["master", "postgresql://planq:5433"])
    plain = OURS.cookie_name("", is_secure=False)

    assert plain != other.cookie_name("", is_secure=False)
    assert plain == Sessions(["master", "postgresql://planq"]).cookie_name("", is_secure=False)
    assert OURS.cookie_name("", is_secure=True) == f"__Host-{plain}"
    assert OURS.cookie_name("/planq", is_secure=True) == f"__Secure-{plain}"
