#!/usr/bin/env python3
"""Writes cldr.json: how languages write numbers, money, dates and times.

    pip install babel==2.18.0 && python3 cldr.py > cldr.json

The data is that of the Unicode CLDR as Babel carries it (Unicode-3.0; https://cldr.unicode.org)."""

import json

from babel import Locale
from babel.numbers import NumberPattern

LOCALES = """ar bg ca cs da de de_AT de_CH el en en_001 en_AU en_CA en_GB en_IE en_IN en_NZ en_ZA es es_419 es_MX et fi fr
fr_CA fr_CH he hi hr hu id is it it_CH ja ko lt lv ms nb nl nn pl pt pt_PT ro ru sk sl sr sv th tr uk vi zh zh_Hant""".split()
CURRENCIES = """AED ARS AUD BGN BRL CAD CHF CLP CNY COP CZK DKK EGP EUR GBP HKD HUF IDR ILS INR ISK JPY KRW KWD MXN MYR
NOK NZD PEN PHP PLN RON RSD RUB SAR SEK SGD THB TND TRY TWD UAH USD VND ZAR""".split()
UNITS = ["second", "minute", "hour", "day", "week", "month", "year"]


def plain(text):
    # No marks of direction, and no narrow space before AM: they make a short message of 160 characters one of 70.
    return text.replace("\u202f", " ").replace("\u200f", "").replace("\u200e", "").replace("\u061c", "")


def pattern(format):
    # Years in full: 02/03/04 is three dates.
    return plain(format.pattern).replace("yy", "y")


def locale(name):
    of = Locale.parse(name)
    latin = of.number_symbols.get("latn") or of.number_symbols
    fields = of._data["date_fields"]
    relative = {}
    for unit in UNITS:
        for way in ("past", "future"):
            relative[f"{unit}.{way}"] = {k: plain(v) for k, v in fields[unit][way].items()}
    money = of.currency_formats["standard"].pattern.split(";")[0]
    number = of.decimal_formats[None].pattern.split(";")[0]
    return {
        "decimal": latin["decimal"],
        "group": latin["group"],
        # Digits of the first group, of the others, and how many a number needs before it is grouped at all.
        "groups": [len(number.split(".")[0].rsplit(",", 1)[-1]),
                   len(number.split(".")[0].rsplit(",", 2)[1]) if number.split(".")[0].count(",") > 1 else len(number.split(".")[0].rsplit(",", 1)[-1]),
                   # Not in Babel's data; these four have 2 in CLDR.
                   2 if name in ("bg", "es", "pl", "pt_PT") else 1],
        "minus": plain(latin.get("minusSign", "-")) or "-",
        "percent": of.percent_formats[None].pattern.split(";")[0],
        "money": plain(money),
        "currencies": {code: plain(of.currency_symbols[code]) for code in CURRENCIES if of.currency_symbols.get(code, code) != code},
        "months": [plain(of.months["format"]["wide"][month]) for month in range(1, 13)],
        "months_short": [plain(of.months["format"]["abbreviated"][month]) for month in range(1, 13)],
        "days": [plain(of.days["format"]["wide"][day]) for day in range(7)],
        "days_short": [plain(of.days["format"]["abbreviated"][day]) for day in range(7)],
        "halves": [plain(of.day_periods["format"]["abbreviated"][half]) for half in ("am", "pm")],
        "date_short": pattern(of.date_formats["short"]),
        "date_medium": plain(of.date_formats["medium"].pattern),
        "date_long": plain(of.date_formats["long"].pattern),
        "date_full": plain(of.date_formats["full"].pattern),
        "time_short": plain(of.time_formats["short"].pattern),
        "time_medium": plain(of.time_formats["medium"].pattern),
        "relative": relative,
    }


print(json.dumps({name.replace("_", "-"): locale(name) for name in LOCALES}, ensure_ascii=False, indent=0, sort_keys=True))
