"""For the site: doctests in docstrings become blocks of code, where Markdown would take ``>>>`` for quotations."""

from __future__ import annotations

import re
from typing import Any

import griffe

DOCTEST = re.compile(r"^( *)>>> .*(?:\n(?! *$).*)*", re.MULTILINE)  # from a prompt to the next blank line


def fenced(text: str) -> str:
    """The text with a fence around every doctest, but for those that have one.

    >>> print(fenced("One is\\n\\n>>> 1\\n1\\n\\nindeed."))
    One is
    <BLANKLINE>
    ```pycon
    >>> 1
    1
    ```
    <BLANKLINE>
    indeed.
    """
    if "```" in text:
        return text
    return DOCTEST.sub(lambda found: f"{found[1]}```pycon\n{found[0]}\n{found[1]}```", text)


class FenceDoctests(griffe.Extension):
    """Runs over every docstring before it is parsed."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Fence the doctests of one object."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)
