"""The report's building blocks: elements that escape what is put into them, tables, icons, and the look of the page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

VOID = frozenset({"meta", "img", "br", "col"})


class Html(str):
    """Text that is HTML already; all other text is escaped."""

    __slots__ = ()


def el(tag: str, *children: Any, **attributes: Any) -> Html:
    """An element. Strings in it are escaped; ``cls`` is its class, ``aria_label`` its aria-label, None none.

    >>> el("p", "a < b & ", el("b", "c"), cls="lead")
    '<p class="lead">a &lt; b &amp; <b>c</b></p>'
    """
    names = {"cls": "class"}
    words = [
        f' {names.get(name, name.replace("_", "-"))}="{escape(str(value))}"'
        for name, value in attributes.items()
        if value is not None
    ]
    end = "" if tag in VOID else f"{join(children)}</{tag}>"
    return Html(f"<{tag}{''.join(words)}>{end}")


def join(parts: Iterable[Any]) -> Html:
    """Parts one after the other, escaped where they aren't HTML; None for nothing.

    >>> join(["<", el("br"), None])
    '&lt;<br>'
    """
    return Html("".join(part if isinstance(part, Html) else escape(str(part)) for part in parts if part is not None))


def section(name: str, heading: str, *children: Any) -> Html:
    """A part of the report, under a heading."""
    return el("section", el("h2", heading, id=f"{name}-heading"), *children, id=name, aria_labelledby=f"{name}-heading")


def grid(heads: Sequence[Any], rows: Iterable[Sequence[Any]], *, caption: str | None = None, cls: str = "") -> Html:
    """A table that scrolls in its own box where it is too wide; the first cell of a row is its heading."""
    body = (el("tr", el("th", first, scope="row"), *(el("td", cell) for cell in rest)) for first, *rest in rows)
    table = el(
        "table",
        el("caption", caption) if caption else None,
        el("thead", el("tr", *(el("th", head, scope="col") for head in heads))) if heads else None,
        el("tbody", *body),
        cls=cls or None,
    )
    return el("div", table, cls="scroll", tabindex="0", role="region", aria_label=caption or "Table")


def folded(summary: str, *children: Any, unfolded: bool = False) -> Html:
    """Something to unfold."""
    return el("details", el("summary", summary), *children, **({"open": ""} if unfolded else {}))


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


def icon(level: str) -> Html:
    """A sign for a level, for those who don't see its colour; the word stands beside it."""
    stroke = {"fill": "none", "stroke": "currentColor", "stroke_width": "2.2", "stroke_linecap": "round"}
    ring = el("circle", cx="12", cy="12", r="10", **stroke)
    sign = el("path", d=SIGNS[level], stroke_linejoin="round", **stroke)
    return el("svg", ring, sign, viewBox="0 0 24 24", cls="icon", aria_hidden="true")


SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")

SIGNS = {
    "good": "M7.5 12.5l3 3 6-6.5",
    "warning": "M12 6.5v7M12 17.2v.1",
    "bad": "M8.5 8.5l7 7M15.5 8.5l-7 7",
    "note": "M12 11v6M12 7.2v.1",
}

CSS = """
:root {
  color-scheme: light dark;
  --page: #fdfdfb; --panel: #f5f5f1; --ink: #1d2025; --soft: #565c65; --line: #e2e2dc; --grid: #ebebe6;
  --original: #c2410c; --unlearned: #0369a1; --retrained: #00805e; --reference: #9a9ea5;
  --good: #006b50; --good-tint: #e8f4ef; --warning: #835500; --warning-tint: #fbf2df;
  --bad: #a8330a; --bad-tint: #fbebe4; --note: #47515e; --note-tint: #eff1f4;
  --mono: ui-monospace, "SF Mono", SFMono-Regular, Menlo, Consolas, "Liberation Mono", monospace;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #131519; --panel: #1b1e24; --ink: #e7e7e3; --soft: #a0a6af; --line: #30343c; --grid: #262a31;
    --original: #fb923c; --unlearned: #5bb8f0; --retrained: #34c99b; --reference: #767c86;
    --good: #52d1a7; --good-tint: #13261f; --warning: #edba5a; --warning-tint: #292112;
    --bad: #ff9a72; --bad-tint: #2d1a13; --note: #aeb7c3; --note-tint: #1e2229;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body {
  margin: 0; background: var(--page); color: var(--ink); overflow-wrap: break-word;
  font: 16px/1.6 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "Noto Sans", sans-serif;
}
header, main, footer { max-width: 860px; margin: 0 auto; padding: 0 24px; }
header { padding-top: 64px; }
header p { margin: 0; color: var(--soft); }
h1 { font-size: clamp(30px, 6vw, 44px); line-height: 1.12; letter-spacing: -.022em; margin: 0 0 12px; }
h1 { font-weight: 650; }
h2 { font-size: 23px; line-height: 1.25; letter-spacing: -.012em; margin: 0 0 10px; font-weight: 620; }
h3 { font-size: 16px; line-height: 1.35; margin: 0; font-weight: 620; }
section { margin-top: 64px; }
p { margin: 0 0 14px; max-width: 68ch; }
.lead, figcaption, caption, .why { color: var(--soft); }
code, .hash { font-family: var(--mono); font-size: .84em; overflow-wrap: anywhere; }
time { white-space: nowrap; }

dl { margin: 0; }
.facts { display: grid; grid-template-columns: repeat(auto-fill, minmax(158px, 1fr)); gap: 18px 28px; margin: 22px 0; }
.facts dt { font-size: 13px; color: var(--soft); }
.facts dd { margin: 2px 0 0; font-weight: 560; font-variant-numeric: tabular-nums; }
.facts dd.figure { font-size: 28px; line-height: 1.2; letter-spacing: -.015em; font-weight: 600; }
.facts dd.beside { font-weight: 400; font-size: 13px; color: var(--soft); }

.banner { display: flex; gap: 18px; padding: 24px 26px; border-radius: 14px; margin: 20px 0 8px; }
.banner .icon { width: 40px; height: 40px; }
.banner p { margin: 0; }
.banner .outcome { font-size: 22px; font-weight: 650; line-height: 1.3; letter-spacing: -.01em; }
.banner .sentence { color: var(--ink); margin-top: 5px; }
.icon { flex: none; width: 22px; height: 22px; display: block; }
.good { color: var(--good); } .warning { color: var(--warning); } .bad { color: var(--bad); }
.note { color: var(--note); }
.banner.good { background: var(--good-tint); } .banner.warning { background: var(--warning-tint); }
.banner.bad { background: var(--bad-tint); } .banner.note { background: var(--note-tint); }
.cards { list-style: none; margin: 26px 0 0; padding: 0; display: grid; gap: 12px; }
.card { display: flex; gap: 14px; padding: 16px 18px; border: 1px solid var(--line); border-radius: 12px; }
.card > div { min-width: 0; flex: 1; }
.card header { display: flex; flex-wrap: wrap; justify-content: space-between; gap: 0 12px; padding: 0; margin: 0; }
.card h3 { color: var(--ink); }
.card header p { color: inherit; font-size: 13px; font-weight: 560; line-height: 22px; }
.card .text { color: var(--ink); font-size: 15px; margin: 4px 0 0; max-width: none; }

.scroll { overflow-x: auto; margin: 18px 0; -webkit-overflow-scrolling: touch; }
.scroll:focus-visible, summary:focus-visible { outline: 2px solid var(--unlearned); outline-offset: 3px; }
table { border-collapse: collapse; width: 100%; font-size: 15px; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-size: 14px; padding: 10px 0 8px; }
th, td { padding: 9px 0 9px 20px; text-align: right; vertical-align: top; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { padding-left: 0; text-align: left; }
th { font-weight: 560; }
thead th { font-size: 13px; color: var(--soft); white-space: nowrap; vertical-align: bottom; }
table.methods th { white-space: nowrap; }
table.words td, table.words thead th { text-align: left; }
table.words th[scope=row] { width: 34%; font-weight: 400; color: var(--soft); }
table.hashes th:first-child { width: 76px; }
table.hashes th, table.hashes td { text-align: left; padding-top: 5px; padding-bottom: 5px; line-height: 1.4; }
.figures th[scope=rowgroup] { padding: 30px 0 8px; font-size: 13px; color: var(--soft); letter-spacing: .01em; }
.figures th[scope=row] { width: 52%; }
.figures td { white-space: nowrap; }
.figures .why, .sd { display: block; font-size: 13px; line-height: 1.45; font-weight: 400; }
.sd { color: var(--soft); }
.key::before {
  content: ""; display: inline-block; width: 10px; height: 10px; border-radius: 3px; margin-right: 7px;
  background: var(--key);
}
.key.original { --key: var(--original); } .key.unlearned { --key: var(--unlearned); }
.key.retrained { --key: var(--retrained); } .key.reference { --key: var(--reference); }
.keys { display: flex; flex-wrap: wrap; gap: 4px 22px; font-size: 14px; margin: 0 0 14px; padding: 0; }
.keys { list-style: none; }

details { margin: 18px 0; border-top: 1px solid var(--line); border-bottom: 1px solid var(--line); }
details + details { margin-top: -19px; }
summary { cursor: pointer; padding: 12px 0; font-weight: 560; }
details > .scroll { margin-top: 0; max-height: 460px; overflow-y: auto; }

figure { margin: 22px 0; }
figcaption { font-size: 14px; line-height: 1.55; margin-top: 12px; max-width: 68ch; }
.plot { display: grid; grid-template-columns: auto 1fr; font-size: 12px; line-height: 1; color: var(--soft); }
.plot .area { position: relative; height: var(--height, 220px); }
.plot .area svg { display: block; width: 100%; height: 100%; overflow: visible; }
.plot .ys { position: relative; min-width: var(--ys, 46px); }
.plot .ys span { position: absolute; right: 9px; transform: translateY(-50%); white-space: nowrap; }
.plot .xs { position: relative; grid-column: 2; height: 22px; }
.plot .xs span { position: absolute; top: 8px; transform: translateX(-50%); white-space: nowrap; }
.plot .xs span.first { transform: none; }
.plot .xs span.last { transform: translateX(-100%); }
.plot .up { grid-column: 2; padding-bottom: 10px; font-size: 13px; }
.plot .title { grid-column: 2; text-align: center; padding-top: 7px; font-size: 13px; }
.plot .mark { position: absolute; transform: translate(9px, -50%); font-weight: 600; color: var(--ink); }
.plot path { fill: none; vector-effect: non-scaling-stroke; stroke-linejoin: round; }
.plot .gridline { stroke: var(--grid); stroke-width: 1; }
.plot .base { stroke: var(--soft); stroke-width: 1; }
.plot .guide { stroke: var(--soft); stroke-width: 1.2; stroke-dasharray: 2 4; }
.plot .line { stroke-width: 2; }
.plot .line.unlearned { stroke-width: 3; }
.plot .line.original { stroke-dasharray: 7 4; }
.line.original, .dot.original { stroke: var(--original); } .line.unlearned, .dot.unlearned { stroke: var(--unlearned); }
.line.retrained, .dot.retrained { stroke: var(--retrained); } .dot.reference { stroke: var(--reference); }
.plot .dot { stroke-linecap: round; stroke-width: 11; }
.plot .bars.original { fill: var(--original); } .plot .bars.unlearned { fill: var(--unlearned); }
.plot .bars.retrained { fill: var(--retrained); } .plot .bars.reference { fill: var(--reference); fill-opacity: .6; }
.beside-plot { display: flex; flex-wrap: wrap; gap: 24px 48px; align-items: center; }
.beside-plot > div { flex: 1 1 240px; }
.beside-plot .keys { display: grid; gap: 8px; }
.beside-plot .square { flex: 0 1 420px; min-width: min(100%, 280px); }
.square .area { height: auto; aspect-ratio: 1; }
.rows .plot { --height: 84px; --ys: 0px; margin-top: 4px; }
.rows h3 { font-size: 14px; margin-top: 16px; display: flex; flex-wrap: wrap; justify-content: space-between; }
.rows h3 span { white-space: nowrap; }
.rows h3 span:last-child { font-weight: 400; color: var(--soft); font-variant-numeric: tabular-nums; }
.multiples { display: grid; grid-template-columns: repeat(3, 1fr); gap: 20px; }
.multiples .plot { --height: 130px; }
.multiples h3 { font-size: 14px; margin-bottom: 12px; }

.layers { list-style: none; margin: 20px 0; padding: 0; }
.layer { display: grid; grid-template-columns: 150px 1fr 92px; gap: 4px 18px; align-items: start; padding: 7px 0; }
.layer code { line-height: 1.3; }
.layer svg { display: block; width: 100%; margin-top: 2px; }
.layer .many { text-align: right; font-size: 13px; color: var(--soft); font-variant-numeric: tabular-nums; }
.cell { fill: var(--line); } .cell.touched { fill: var(--unlearned); }
.keys .cell { width: 12px; height: 12px; display: inline-block; margin-right: 7px; vertical-align: -1px; }

.samples { display: grid; gap: 26px; margin: 22px 0; }
.sample { display: grid; grid-template-columns: repeat(4, minmax(0, 150px)); gap: 8px 16px; margin: 0; }
.sample figcaption { grid-column: 1 / -1; margin: 0; }
.sample img { width: 100%; display: block; image-rendering: pixelated; border-radius: 6px; background: var(--panel); }
.sample span { font-size: 13px; color: var(--soft); }
.sample .words { grid-column: 1 / -1; white-space: pre-wrap; margin: 0; padding: 12px 14px; background: var(--panel);
  border-radius: 8px; font: 14px/1.5 var(--mono); overflow-wrap: anywhere; }
.scale { display: flex; align-items: center; gap: 10px; font-size: 13px; color: var(--soft); }
.scale img { width: 180px; height: 10px; border-radius: 3px; }

.glossary dt { font-weight: 620; margin-top: 16px; }
.glossary dd { margin: 2px 0 0; max-width: 68ch; }
footer { padding-top: 56px; padding-bottom: 72px; font-size: 14px; color: var(--soft); }

@media (max-width: 600px) {
  body { font-size: 16px; }
  header, main, footer { padding-left: 18px; padding-right: 18px; }
  header { padding-top: 36px; }
  section { margin-top: 48px; }
  .banner { padding: 20px 18px; gap: 14px; }
  .banner .icon { width: 32px; height: 32px; }
  .card { padding: 14px; gap: 10px; }
  .facts { grid-template-columns: repeat(2, 1fr); gap: 16px 18px; }
  .figures thead { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
  .figures tr { display: grid; grid-template-columns: repeat(3, 1fr); padding: 10px 0; }
  .figures tr { border-bottom: 1px solid var(--line); }
  .figures tr.two { grid-template-columns: repeat(2, 1fr); }
  .figures th, .figures td { border: 0; padding: 0; text-align: left; }
  .figures th[scope=row], .figures th[scope=rowgroup] { grid-column: 1 / -1; width: auto; }
  .figures th[scope=rowgroup] { padding-top: 14px; }
  .figures td { padding-top: 6px; }
  .figures td::before { content: attr(data-label); display: block; font-size: 12px; color: var(--soft); }
  .multiples { grid-template-columns: 1fr; }
  .layer { grid-template-columns: 1fr auto; padding: 9px 0; }
  .layer svg { grid-column: 1 / -1; grid-row: 2; }
  .sample { grid-template-columns: repeat(2, minmax(0, 1fr)); }
}
@media print {
  :root { --page: #fff; }
  body { font-size: 11pt; }
  header { padding-top: 0; }
  header, main, footer { max-width: none; padding-left: 0; padding-right: 0; }
  section { margin-top: 28pt; }
  h2, h3 { break-after: avoid; }
  .card, figure, tr, .layer, .sample, .banner { break-inside: avoid; }
  .banner, .bars, .dot, .cell, .key::before, img { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  .scroll, details > .scroll { overflow: visible; max-height: none; }
  details::details-content { content-visibility: visible; display: block; block-size: auto; }
}
"""
