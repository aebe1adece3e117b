"""When schedules are due: recurrences, rules for missed times, and the times that people write."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.schedules.chat_times import parse_when
from gateway.schedules.firing import GRACE, plan_occurrence
from gateway.schedules.recurrence import InvalidRecurrence, Recurrence, parse_recurrence
from gateway.schedules.schedules import ScheduleEnded, resumed
from gateway.store.conversations.schedules import MissedRule, Schedule, ScheduleKind, ScheduleState

NOW = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)  # a Sunday
BERLIN = "Europe/Berlin"
LORD_HOWE = "Australia/Lord_Howe"


def schedule(**changes: object) -> Schedule:
    """Return an hourly schedule that is due at NOW."""
    values: dict[str, object] = {
        "id": "sch_1",
        "account": "acc_1",
        "conversation": "cnv_1",
        "kind": ScheduleKind.TURN,
        "text": "look",
        "at": None,
        "every_seconds": 3600,
        "cron": None,
        "timezone": "UTC",
        "missed": MissedRule.ONCE,
        "state": ScheduleState.ACTIVE,
        "next_at": NOW,
        "created_by": "key_1",
        "created_at": NOW,
    }
    return Schedule(**(values | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({}, "at"),
        ({"at": NOW + timedelta(days=1), "every": "PT1H"}, "every"),
        ({"at": NOW}, "at"),
        ({"at": NOW.replace(tzinfo=None) + timedelta(days=1)}, "at"),
        ({"at": NOW + timedelta(days=4000)}, "at"),
        ({"at": datetime(9999, 12, 31, 23, tzinfo=timezone(timedelta(hours=-12)))}, "at"),
        ({"at": datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=12)))}, "at"),
        ({"every": "PT59S"}, "every"),
        ({"every": "3600"}, "every"),
        ({"every": "P1M"}, "every"),
        ({"every": "P1Y2DT1M"}, "every"),
        ({"every": "PT90.5S"}, "every"),
        ({"every": "P99999999999999999D"}, "every"),
        ({"every": "P" + "1" * 100_000 + "D"}, "every"),
        ({"cron": "* * * * * *"}, "cron"),
        ({"cron": "0 0 30 2 *"}, "cron"),
        ({"cron": "99 * * * *"}, "cron"),
        ({"cron": "0 0 1 1 " + "1," * 50_000 + "1"}, "cron"),
        ({"cron": "0 9 * * *", "timezone": "Mars/Olympus"}, "timezone"),
        ({"cron": "0 9 * * *", "timezone": "../../etc/passwd"}, "timezone"),
        ({"cron": "0 9 * * *", "timezone": ""}, "timezone"),
    ],
)
def test_an_invalid_recurrence_names_its_field(fields: dict[str, object], field: str) -> None:
    """What is never due, too frequent, or no time at all is refused with the field that is wrong."""
    with pytest.raises(InvalidRecurrence) as refused:
        parse_recurrence(now=NOW, **fields)  # type: ignore[arg-type]
    assert refused.value.field == field
    assert len(str(refused.value)) < 300


def test_cron_follows_daylight_saving() -> None:
    """The skipped 2:30 is due at 3:00, the repeated 2:30 once, and an hourly one each hour that exists."""
    daily = parse_recurrence(now=NOW, cron="30 2 * * *", timezone=BERLIN)
    spring = datetime(2027, 3, 27, 12, tzinfo=UTC)
    first = daily.next_after(spring, since=spring)
    assert first is not None
    assert first.astimezone(ZoneInfo(BERLIN)).strftime("%d %H:%M") == "28 03:00"
    autumn = datetime(2027, 10, 30, 12, tzinfo=UTC)
    night = daily.next_after(autumn, since=autumn)
    assert night is not None
    following = daily.next_after(night, since=night)
    assert following is not None
    assert following - night >= timedelta(hours=24)
    hourly = parse_recurrence(now=NOW, cron="0 * * * *", timezone=BERLIN)
    moment, hours = datetime(2027, 10, 30, 22, 30, tzinfo=UTC), []
    for _ in range(5):
        found = hourly.next_after(moment, since=moment)
        assert found is not None
        hours.append(found - moment)
        moment = found
    assert set(hours[1:]) == {timedelta(hours=1)}


@pytest.mark.parametrize(
    ("zone", "from_", "cron", "local"),
    [
        (BERLIN, "2027-03-28T00:30", "0 */2 * * *", "03:00 04:00 06:00"),
        (BERLIN, "2027-10-31T00:30", "0 */2 * * *", "02:00 04:00 06:00"),
        (BERLIN, "2027-10-31T01:45", "*/30 * * * *", "02:00 02:30 02:00 02:30 03:00"),
        ("America/New_York", "2027-03-14T00:30", "15 */2 * * *", "03:00 04:15 06:15"),
        ("America/New_York", "2027-11-07T00:45", "30 * * * *", "01:30 01:30 02:30"),
        (LORD_HOWE, "2027-10-03T00:30", "0 */2 * * *", "02:30 04:00 06:00"),
        (LORD_HOWE, "2027-04-04T00:30", "0 */2 * * *", "02:00 04:00 06:00"),
        (LORD_HOWE, "2027-04-04T00:45", "45 * * * *", "01:45 01:45 02:45"),
        ("Africa/Cairo", "2027-04-29T22:30", "0 */2 * * *", "01:00 02:00 04:00"),
    ],
)
def test_cron_times_on_days_when_clocks_change(zone: str, from_: str, cron: str, local: str) -> None:
    """No time is lost and none is due twice, unless clocks show it twice and every hour is wanted."""
    recurrence, moment, found = Recurrence(cron=cron, timezone=zone), datetime.fromisoformat(from_), []
    due = moment.replace(tzinfo=ZoneInfo(zone)).astimezone(UTC)
    for _expected in local.split():
        following = recurrence.next_after(due, since=due)
        assert following is not None
        assert following > due
        found.append(f"{following.astimezone(ZoneInfo(zone)):%H:%M}")
        due = following
    assert " ".join(found) == local


def test_a_schedule_whose_time_zone_is_gone_fires_and_is_paused() -> None:
    """The due time starts what it starts; its note names the zone, and it cannot be resumed as it is."""
    gone = schedule(every_seconds=None, cron="0 9 * * *", timezone="Mars/Olympus")
    found = plan_occurrence(gone, NOW, NOW)
    assert (found.starts, found.after.state, found.after.next_at) == (True, ScheduleState.PAUSED, None)
    assert "Mars/Olympus" in found.after.note
    with pytest.raises(ScheduleEnded, match="Mars/Olympus"):
        resumed(found.after, NOW)


@given(
    seconds=st.integers(60, 10**8),
    late=st.integers(0, 10**9),
)
def test_intervals_keep_their_grid(seconds: int, late: int) -> None:
    """The next time of an interval is after the present and a whole number of intervals after the last."""
    every = timedelta(seconds=seconds)
    moment = NOW + timedelta(seconds=late)
    found = Recurrence(every=every).next_after(moment, since=NOW)
    assert found is not None
    assert moment < found <= moment + every
    assert (found - NOW) % every == timedelta()


@pytest.mark.parametrize(
    ("missed", "starts", "next_hours"),
    [(MissedRule.SKIP, False, 6), (MissedRule.ONCE, True, 6), (MissedRule.ALL, True, 1)],
)
def test_missed_times_follow_their_rule(missed: MissedRule, starts: bool, next_hours: int) -> None:
    """After five hours without a gateway none, one or each of the missed times is made up for."""
    occurrence = plan_occurrence(schedule(missed=missed), NOW, NOW + timedelta(hours=5, minutes=1))
    assert occurrence.starts is starts
    assert occurrence.after.next_at == NOW + timedelta(hours=next_hours)
    assert occurrence.after.fired == int(starts)


@pytest.mark.parametrize("missed", list(MissedRule))
def test_a_time_within_the_grace_period_was_not_missed(missed: MissedRule) -> None:
    """A slow gateway is not an absent one."""
    occurrence = plan_occurrence(schedule(missed=missed), NOW, NOW + GRACE)
    assert occurrence.starts
    assert occurrence.after.next_at == NOW + timedelta(hours=1)


def test_a_single_time_ends_its_schedule() -> None:
    """What is due once ends, and says so if it was skipped."""
    once = schedule(at=NOW, every_seconds=None, missed=MissedRule.SKIP)
    in_time = plan_occurrence(once, NOW, NOW).after
    too_late = plan_occurrence(once, NOW, NOW + timedelta(days=1))
    assert (in_time.state, in_time.next_at, in_time.note) == (ScheduleState.ENDED, None, "")
    assert not too_late.starts
    assert too_late.after.state is ScheduleState.ENDED
    assert too_late.after.note


@pytest.mark.parametrize(
    ("text", "due", "rest"),
    [
        ("in 20m tea", "2026-11-22 13:20", "tea"),
        ("in 2 hours call mum", "2026-11-22 15:00", "call mum"),
        ("in 1w pay", "2026-11-29 13:00", "pay"),
        ("at 18:00 go home", "2026-11-22 18:00", "go home"),
        ("at 9:00 stand up", "2026-11-23 09:00", "stand up"),
        ("tomorrow 9:00 x", "2026-11-23 09:00", "x"),
        ("tomorrow at 09:30 x y", "2026-11-23 09:30", "x y"),
        ("2027-01-31 9:00 taxes", "2027-01-31 09:00", "taxes"),
        ("2027-03-28 2:30 clocks", "2027-03-28 03:30", "clocks"),
        ("every 2h look", "2026-11-22 15:00", "look"),
        ("every day 8:00 report", "2026-11-23 08:00", "report"),
        ("every weekday at 8:00 report", "2026-11-23 08:00", "report"),
        ("every mondays 8:30 plan", "2026-11-23 08:30", "plan"),
        ("every sunday 8:30 rest", "2026-11-29 08:30", "rest"),
        ("cron 0 9 * * 1-5 report", "2026-11-23 09:00", "report"),
    ],
)
def test_times_as_people_write_them(text: str, due: str, rest: str) -> None:
    """Each form that the help names is understood, in the operator's time zone."""
    recurrence, found = parse_when(text.split(), now=NOW, timezone=BERLIN)
    assert recurrence.first(NOW).astimezone(ZoneInfo(BERLIN)).strftime("%Y-%m-%d %H:%M") == due
    assert found == rest


@pytest.mark.parametrize(
    "text",
    ["", "tea", "in", "in tea", "in 20", "in 9999999m x", "in 10s x", "at", "at 25:00 x", "today 11:00 x",
     "tomorrow x", "yesterday 9:00 x", "2020-01-01 9:00 x", "every", "every tea", "every 10s x", "every day",
     "cron", "cron 0 9 * *", "cron a b c d e x", "in " + "9" * 100_000 + "m x", "in 999999w x",
     "every 1s x", "every 999999w x"],
)  # fmt: skip
def test_other_words_are_no_time(text: str) -> None:
    """Anything else is refused in a sentence."""
    with pytest.raises(InvalidRecurrence) as refused:
        parse_when(text.split(), now=NOW, timezone=BERLIN)
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize("zone", [BERLIN, "America/Los_Angeles", "Asia/Tokyo"])
def test_the_first_and_the_last_year_are_refused_in_each_zone(zone: str) -> None:
    """A time that exists in a zone and not in UTC is refused like any other one."""
    for text in ("9999-12-31 23:59 x", "0001-01-01 0:00 x"):
        with pytest.raises(InvalidRecurrence):
            parse_when(text.split(), now=NOW, timezone=zone)


@given(st.text(max_size=60))
def test_any_text_is_a_time_or_is_refused(text: str) -> None:
    """No text causes another error."""
    for words in (text.split(), ["every", *text.split()], ["at", *text.split()], ["cron", *text.split()]):
        try:
            parse_when(words, now=NOW, timezone=BERLIN)
        except InvalidRecurrence:
            continue
