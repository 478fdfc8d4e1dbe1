"""When a schedule is due: once at a moment, or again and again by a cron expression in a time zone.

Cron is read as Debian's cron reads it (`cronsim`, crontab(5)). Where clocks change, an expression that names its hour
runs once: a time that the clock skips comes right after the gap, a time that it shows twice counts the first time.
One whose minute or hour is `*` follows real time instead, through gaps and repeats. Moments go in and out in UTC.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from planq.shared.platform.errors import InvalidRequest, capped

MAX_CRON_CHARS = 200
MAX_REMINDERS = 10_000
"""That are still to come, of a tenant whose configuration does not say it."""

MAX_AHEAD = timedelta(days=3_660)
"""Ten years: what lies further ahead is a mistake in the date more often than a plan."""

_EXAMPLES = "`0 9 * * 1-5` (at 9:00 from Monday to Friday), `*/15 * * * *` (every quarter of an hour)"
_MAX_ZONE_CHARS = 100


def read_zone(name: str) -> tzinfo:
    """Return the time zone of an IANA name such as `Europe/Berlin`; raises `InvalidRequest` for any other text."""
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
    """Return the moment of an ISO 8601 text, in UTC; one without an offset is the local time in `zone`.

    A local time that the clock skips is read as if it had not been put forward, one that it shows twice counts the
    first time. Raises `InvalidRequest` naming `place`.
    """
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
    """Return the first moment after `after` (aware) at which a cron expression is due, in UTC.

    None when there is none in the next 50 years. Raises `InvalidRequest` for what is no cron expression.
    """
    after = after.astimezone(UTC)
    # What the clock shows for the second time is not asked for again: from there the expression would look back.
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
