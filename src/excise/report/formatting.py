"""How the report writes numbers: as people read them, with a dash where there is none."""

from __future__ import annotations

import math

SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def number(value: float | None, digits: int = 3) -> str:
    """A number as people read it; a dash where there is none.

    >>> [number(value) for value in (0.16666, 14.7541, 123456.0, 0.0000123, 0.0, float("nan"))]
    ['0.167', '14.754', '123,456', '1.2 × 10⁻⁵', '0', '–']
    """
    if value is None or math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    size = abs(value)
    if 0 < size < 10.0**-digits or size >= 1e7:
        factor, power = f"{value:.1e}".split("e")
        return f"{factor} × 10{str(int(power)).translate(SUPERSCRIPTS)}".replace("-", "−")
    places = 0 if size >= 1000 or value == 0 else min(digits, 1) if size >= 100 else digits
    return f"{value:,.{places}f}".replace("-", "−")


def fixed(value: float, digits: int = 2) -> str:
    """A number with so many decimals, whatever its size.

    >>> fixed(0.0017), fixed(0.5, 1), fixed(float("nan"))
    ('0.00', '0.5', '–')
    """
    return f"{value:.{digits}f}".replace("-", "−") if math.isfinite(value) else "–"


def percent(value: float | None, digits: int = 1) -> str:
    """A share of one in percent.

    >>> percent(0.9401), percent(1.0), percent(float("nan"))
    ('94.0 %', '100.0 %', '–')
    """
    if value is None or not math.isfinite(value):
        return "–"
    return f"{100 * value + 0.0:.{digits}f} %".replace("-", "−")


def count(many: int, noun: str) -> str:
    """So many of them.

    >>> count(1, "sample"), count(1200, "sample")
    ('1 sample', '1,200 samples')
    """
    return f"{many:,} {noun}{'' if many == 1 else 's'}"


def duration(seconds: float) -> str:
    """Seconds, minutes or hours.

    >>> duration(0.033), duration(75), duration(7200)
    ('0.03 s', '75 s', '2.0 h')
    """
    if seconds < 120:
        return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
