"""Text from data, made safe to print: a terminal obeys control characters, and bidi marks turn words around."""

from __future__ import annotations

import unicodedata

JOINERS = "\u200c\u200d"  # which scripts and emoji are written with
UNSEEN = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}  # control, format, surrogate, private use, separators of lines


def visible(text: str, *, keep: str = "") -> str:
    r"""The text with control, bidi and other unseen characters as escapes, all but those to keep.

    >>> print(visible("a\x1b]0;b\x07 \u202ec\n"), visible("é 日本 👩\u200d💻"))
    a\x1b]0;b\x07 \u202ec\n é 日本 👩‍💻
    """
    if text.isprintable():
        return text
    return "".join(one if one in keep or not _is_unseen(one) else _escaped(one) for one in text)


def _is_unseen(character: str) -> bool:
    return unicodedata.category(character) in UNSEEN and character not in JOINERS


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
