"""Elements of the plots as Python: what is put into them is escaped. The rest of the page is templates."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Any

from markupsafe import Markup

from excise._support.visible import visible


def el(tag: str, *children: Any, **attributes: Any) -> Markup:
    """An element. Strings in it are escaped; ``cls`` is its class, ``aria_label`` its aria-label, None none.

    >>> print(el("p", "a < b & ", el("b", "c"), cls="lead"))
    <p class="lead">a &lt; b &amp; <b>c</b></p>
    """
    names = {"cls": "class"}
    words = [
        f' {names.get(name, name.replace("_", "-"))}="{escape(visible(str(value)))}"'
        for name, value in attributes.items()
        if value is not None
    ]
    return Markup(f"<{tag}{''.join(words)}>{join(children)}</{tag}>")


def join(parts: Iterable[Any]) -> Markup:
    """Parts one after the other, escaped where they aren't HTML; None for nothing.

    >>> print(join(["<", el("b"), None]))
    &lt;<b></b>
    """
    return Markup(
        "".join(part if isinstance(part, Markup) else escape(visible(str(part))) for part in parts if part is not None)
    )
