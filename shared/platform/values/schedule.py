"""When a schedule is due: once, or by a cron expression in a time zone (`cronsim`, crontab(5)).

As in Debian's cron, an expression with a fixed hour runs once when clocks change: after a gap, and the first time of
a repeat. With `*` as minute or hour it follows real time. Times are UTC.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from planq.shared.platform.errors import InvalidRequest, capped

MAX_CRON_CHARS = 200
MAX_REMINDERS = 10_000
"""Default maximum of a tenant's future reminders."""

MAX_AHEAD = timedelta(days=3_660)
"""Ten years: later dates are more often mistakes."""

_EXAMPLES = "`0 9 * * 1-5` (at 9:00 from Monday to Friday), `*/15 * * * *` (every quarter of an hour)"
_MAX_ZONE_CHARS = 100


def read_zone(name: str) -> tzinfo:
    """Return the time zone of an IANA name; raises `InvalidRequest`."""
    if name.upper() == "UTC":
        return UTC
    try:
        if len(name) > _MAX_ZONE_CHARS or not name.isascii():
            raise ValueError("no name of a time zone")
        return ZoneInfo(name)
    except (LookupError, ValueError, OSError) as error:  # a folder of the database, a path that leads out of it
        raise InvalidRequest(
            f"timezone: expected a name of the IANA database such as 'Europe/Berlin' or 'UTC', found "
            f"{capped(name, 80)!r}"
        ) from error


def read_moment(text: str, zone: tzinfo, place: str = "at") -> datetime:
    """Return an ISO 8601 text in UTC, local to `zone` without an offset; raises `InvalidRequest`."""
    try:
        found = datetime.fromisoformat(text.strip())
        return (found if found.tzinfo is not None else found.replace(tzinfo=zone)).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise InvalidRequest(
            f"{place}: expected a time such as 2026-12-24T18:00:00+01:00 (ISO 8601), found {capped(text, 80)!r}"
        ) from error


def check_cron(expression: str) -> None:
    """Raise `InvalidRequest` unless the text is a cron expression of five fields."""
    _simulated(expression, datetime(2000, 1, 1, tzinfo=UTC))


def next_time(expression: str, zone: tzinfo, after: datetime) -> datetime | None:
    """Return the first due moment after `after` (aware) in UTC, None within 50 years; raises `InvalidRequest`."""
    after = after.astimezone(UTC)
    # Skip times that the clock shows again after summer time: croniter would go back there.
    for moment in _simulated(expression, after.astimezone(zone)):
        due = moment.astimezone(UTC)
        if due > after:
            return due
    return None


def _simulated(expression: str, since: datetime) -> CronSim:
    fields = expression.split()
    if len(expression) > MAX_CRON_CHARS or len(fields) != 5:
        raise InvalidRequest(
            f"crontab: expected five fields (minute, hour, day of month, month, day of week), found {len(fields)} in "
            f"{capped(expression, 80)!r}; such as {_EXAMPLES}"
        )
    try:
        return CronSim(expression, since)
    except CronSimError as error:
        problem = str(error).removeprefix("Bad ")
        raise InvalidRequest(
            f"crontab: the field {problem} of {capped(expression, 80)!r} cannot be read; such as {_EXAMPLES}"
        ) from error
