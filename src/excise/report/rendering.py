"""The templates and the stylesheet that come with the package, and how a page is made of them."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from excise._support.visible import visible
from excise.report.formatting import count, duration, fixed, number, percent


def render(template: str, **values: Any) -> str:
    """A template filled in. Text is escaped; a name that was not passed is an error, not an empty place."""
    return environment().get_template(template).render(values)


@cache
def environment() -> Environment:
    """Where templates are found, and what they may call to write numbers."""
    found = Environment(
        loader=PackageLoader("excise.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=_shown,
    )
    # "counted", since Jinja has a filter "count" of its own
    found.filters |= {"counted": count, "duration": duration, "fixed": fixed, "number": number, "percent": percent}
    return found


def _shown(value: Any) -> Any:
    """Text from outside without marks that turn words around or can't be seen; HTML as it is."""
    return visible(value, keep="\n\t") if isinstance(value, str) and not isinstance(value, Markup) else value


def stylesheet() -> Markup:
    """The look of the page."""
    return Markup((files("excise.report") / "style.css").read_text(encoding="utf-8"))
