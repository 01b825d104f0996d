#!/usr/bin/env python3
"""Writes dateutil.tsv: what python-dateutil and zoneinfo make of random rules in random zones.

    python3 make-dateutil-table.py > dateutil.tsv

Needs python3-dateutil and a zone database. Where RFC 5545 leaves room, dateutil decides otherwise than libical, whose
test vectors we follow; the differences are put into words that both read alike:
- YEARLY;BYMONTHDAY without BYMONTH: every month for dateutil, the month of the start for libical. BYMONTH is written out.
- YEARLY;BYWEEKNO without BYDAY: every day of the week for dateutil, the weekday of the start for libical. BYDAY is
  written out. INTERVAL and BYSETPOS go by calendar years for dateutil, by week years for libical; neither is used.
- WEEKLY;BYSETPOS: dateutil begins the first set at the start, not at the week's beginning; it is asked from there.
"""

import random
import signal
import sys
from datetime import datetime, timedelta, timezone
from zoneinfo import ZoneInfo

from dateutil.rrule import rrulestr

SEED = 20261121
CASES = 2_000
INSTANTS = 8
DAYS = ["MO", "TU", "WE", "TH", "FR", "SA", "SU"]
ZONES = """Africa/Cairo Africa/Casablanca Africa/Johannesburg America/Asuncion America/Havana America/Los_Angeles
America/New_York America/Sao_Paulo America/St_Johns Antarctica/Troll Asia/Amman Asia/Beirut Asia/Gaza Asia/Jerusalem
Asia/Kathmandu Asia/Kolkata Asia/Tehran Asia/Tokyo Atlantic/Azores Australia/Adelaide Australia/Lord_Howe
Australia/Sydney Europe/Berlin Europe/Dublin Europe/Istanbul Europe/London Europe/Moscow Europe/Vienna
Pacific/Apia Pacific/Auckland Pacific/Chatham Pacific/Kiritimati UTC""".split()
UTC = timezone.utc


def changes(zone, around):
    """The naive UTC times within 400 days after `around` at which the offset changes, by days."""
    found = []
    at = around
    for _ in range(400):
        later = at + timedelta(days=1)
        offset = lambda time: time.replace(tzinfo=UTC).astimezone(zone).utcoffset()
        if offset(at) != offset(later):
            low, high = at, later
            while high - low > timedelta(seconds=1):
                middle = low + timedelta(seconds=(high - low).total_seconds() // 2)
                low, high = (middle, high) if offset(middle) == offset(low) else (low, middle)
            found.append(high.replace(tzinfo=UTC).astimezone(zone).replace(tzinfo=None))
        at = later
    return found


def numbers(r, low, high, most, signed=False):
    picks = {r.randint(low, high) * (r.choice((1, 1, -1)) if signed else 1) for _ in range(r.randint(1, most))}
    return sorted(picks)


def case(r):
    name = r.choice(ZONES)
    zone = ZoneInfo(name)
    start = datetime(1990, 1, 1) + timedelta(minutes=15 * r.randrange(40 * 365 * 96))
    if r.random() < 0.5 and (near := changes(zone, start)):
        start = r.choice(near) + timedelta(minutes=15 * r.randrange(-200, 100))
    if r.random() < 0.2:
        start += timedelta(seconds=r.randrange(900))
    freq = r.choice(["YEARLY", "MONTHLY", "WEEKLY", "DAILY", "DAILY", "HOURLY", "MINUTELY", "SECONDLY"])
    sub_daily = freq in ("HOURLY", "MINUTELY", "SECONDLY")
    parts = {"FREQ": freq}
    if r.random() < 0.4:
        parts["INTERVAL"] = r.choice([2, 3, 4, 5, 6, 7, 11, 13, 24, 45, 61, 90])
    maybe = lambda chance: r.random() < chance
    listed = lambda values: ",".join(map(str, values))
    if maybe(0.25):
        parts["BYMONTH"] = listed(numbers(r, 1, 12, 4))
    if freq == "YEARLY" and maybe(0.2):
        parts["BYWEEKNO"] = listed(numbers(r, 1, 53, 3, signed=True))
        parts.pop("INTERVAL", None)
    if freq == "YEARLY" and maybe(0.2) or sub_daily and maybe(0.05):
        parts["BYYEARDAY"] = listed(numbers(r, 1, 366, 40 if sub_daily else 5, signed=True))
    if freq != "WEEKLY" and maybe(0.25):
        parts["BYMONTHDAY"] = listed(numbers(r, 1, 31, 12 if sub_daily else 4, signed=True))
    if maybe(0.35):
        days = r.sample(DAYS, r.randint(1, 5))
        if freq == "MONTHLY" and maybe(0.5):
            days = [f"{r.choice([1, 2, 3, 4, 5, -1, -2])}{day}" for day in days]
        if freq == "YEARLY" and "BYWEEKNO" not in parts and maybe(0.5):
            high = 4 if "BYMONTH" in parts else 50
            days = [f"{r.randint(1, high) * r.choice([1, -1])}{day}" for day in days]
        parts["BYDAY"] = ",".join(days)
    if maybe(0.25):
        parts["BYHOUR"] = listed(sorted(set(numbers(r, 0, 23, 4)) | ({start.hour} if sub_daily else set())))
    if maybe(0.2):
        parts["BYMINUTE"] = listed(sorted(set(numbers(r, 0, 59, 4)) | ({start.minute} if sub_daily else set())))
    if maybe(0.1):
        parts["BYSECOND"] = listed(sorted(set(numbers(r, 0, 59, 4)) | ({start.second} if sub_daily else set())))
    if maybe(0.2):
        parts["WKST"] = r.choice(DAYS)
    if set(parts) - {"FREQ", "INTERVAL", "WKST"} and "BYWEEKNO" not in parts and maybe(0.2):
        parts["BYSETPOS"] = listed(numbers(r, 1, 6, 2, signed=True))
    if freq == "YEARLY" and "BYMONTHDAY" in parts and not set(parts) & {"BYMONTH", "BYDAY", "BYYEARDAY", "BYWEEKNO"}:
        parts["BYMONTH"] = start.month
    if "BYWEEKNO" in parts and not set(parts) & {"BYDAY", "BYMONTHDAY", "BYYEARDAY"}:
        parts["BYDAY"] = DAYS[start.weekday()]
    if freq == "WEEKLY" and "BYDAY" not in parts:
        parts["BYDAY"] = DAYS[start.weekday()]
    span = {"YEARLY": 9000, "MONTHLY": 3000, "WEEKLY": 1200, "DAILY": 800, "HOURLY": 200, "MINUTELY": 10}.get(freq, 0.3)
    until = start + timedelta(days=span)
    whole_weeks = freq == "WEEKLY" and "BYSETPOS" in parts
    if maybe(0.3) and not whole_weeks:
        parts["COUNT"] = r.randint(1, INSTANTS)
    else:
        parts["UNTIL"] = until.strftime("%Y%m%dT%H%M%S")
    text = ";".join(f"{key}={value}" for key, value in parts.items())
    begin = start
    if whole_weeks:
        begin -= timedelta(days=(start.weekday() - DAYS.index(parts.get("WKST", "MO"))) % 7)
        for part, value in (("BYHOUR", start.hour), ("BYMINUTE", start.minute), ("BYSECOND", start.second)):
            parts.setdefault(part, value)
    # dateutil walks to the end of time if a count is never reached, so it is always given an end as well.
    parts["UNTIL"] = until.strftime("%Y%m%dT%H%M%S")
    asked = ";".join(f"{key}={value}" for key, value in parts.items())
    instants = set()
    extra = 0
    for local in rrulestr(asked, dtstart=begin):
        if local > until:
            break
        if local < start:
            continue
        instants.add(int(local.replace(tzinfo=zone).astimezone(UTC).timestamp()))
        # Around a change of clocks later times can come before earlier ones: take some more, then cut.
        extra += 1
        if extra >= 400:
            break
    ended = extra < 400 and extra == parts.get("COUNT", extra)
    shown = sorted(instants)[:INSTANTS]
    over = "end" if ended and len(instants) <= INSTANTS else "more"
    return name, start.strftime("%Y%m%dT%H%M%S"), text, over, ",".join(map(str, shown))


def main():
    def too_slow(*_):
        raise TimeoutError

    signal.signal(signal.SIGALRM, too_slow)
    print("# zone\tstart\trule\twhether there are more\tthe first instants, in seconds since 1970")
    cases = seeds = 0
    while cases < CASES:
        seeds += 1
        # dateutil looks for the next occurrence of a sparse rule up to the year 9999, whatever its end; such rules are
        # left out, which is why another machine may write a somewhat different table.
        signal.setitimer(signal.ITIMER_REAL, 0.4)
        try:
            line = "\t".join(case(random.Random(SEED * 100_000 + seeds)))
        except TimeoutError:
            continue
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        print(line, flush=True)
        cases += 1
    print(f"{CASES} cases of {seeds} tried", file=sys.stderr)


main()
