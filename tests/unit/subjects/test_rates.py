"""What rate verdicts tell, and what the windows of one process keep; `test_rate_windows.py` has the rest."""

from __future__ import annotations

from planq.shared.subjects.tenants.rates import LocalWindows, RateRequest, Rates, RateVerdict, Window


def test_every_answer_tells_both_windows_and_a_refusal_when_to_come_again() -> None:
    full, free = Window(2, 2, 1_000.25), Window(5, 2, 1_030.0)

    assert RateVerdict(True, 970.5, free, full).headers() == {
        "X-RateLimit-Limit": "5",
        "X-RateLimit-Remaining": "3",
        "X-RateLimit-Reset": "1030",
        "X-RateLimit-Channel-Limit": "2",
        "X-RateLimit-Channel-Remaining": "0",
        "X-RateLimit-Channel-Reset": "1001",
    }
    assert RateVerdict(False, 970.5, full, free).headers()["Retry-After"] == "30", "the free window asks for no wait"
    assert RateVerdict(False, 970.5, full, Window(1, 1, 990.0)).retry_after == 30, "both must have a place"
    assert RateVerdict(False, 1_000.2, full, free).retry_after == 1
    assert RateVerdict(False, 970.5, Window(1, 3, 990.0), free).headers()["X-RateLimit-Remaining"] == "0"


def test_windows_in_which_nothing_counts_are_forgotten() -> None:
    windows = LocalWindows()
    for number in range(1_000):
        windows.check(RateRequest(f"tenant-{number}", "web", Rates(5, 5)), now=number / 1_000)
    assert len(windows) == 2_000

    for number in range(1_000):
        windows.check(RateRequest(f"tenant-{number % 10}", "web", Rates(5_000, 5_000)), now=100.0)

    assert len(windows) == 20


def test_a_message_counts_for_a_minute_and_no_longer() -> None:
    windows = LocalWindows()
    request = RateRequest("acme", "web", Rates(1, 1))
    assert windows.check(request, now=100.0).is_allowed
    refused = windows.check(request, now=159.999)
    assert (refused.is_allowed, refused.tenant.used) == (False, 1)
    assert windows.check(request, now=160.0).is_allowed, "when the answer said that it would be"


def test_a_clock_that_is_put_back_keeps_nobody_out() -> None:
    windows = LocalWindows()
    assert windows.check(RateRequest("acme", "web", Rates(1, 1)), now=90_000.0).is_allowed
    assert windows.check(RateRequest("acme", "web", Rates(1, 1)), now=10.0).is_allowed
    assert not windows.check(RateRequest("acme", "web", Rates(1, 1)), now=20.0).is_allowed


def test_what_was_let_in_elsewhere_counts() -> None:
    windows = LocalWindows()
    windows.note(RateRequest("acme", "web", Rates(2, 2)), now=0.0)
    windows.note(RateRequest("acme", "sms", Rates(2, 2)), now=1.0)
    refused = windows.check(RateRequest("acme", "web", Rates(2, 2)), now=2.0)
    assert (refused.is_allowed, refused.tenant, refused.channel) == (False, Window(2, 2, 60.0), Window(2, 1, 60.0))
