"""The page: its sections, filled into the templates, and written as one file.

It needs no network and has no scripts, no paths, and nothing of the samples but their ids and hashes, unless these are
passed in to be shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import excise
from excise._support.files import write_whole
from excise.errors import InputError
from excise.report import plots, sections
from excise.report.record import record
from excise.report.rendering import render, stylesheet
from excise.report.samples import SampleView, SensitivityMap, shown
from excise.report.sections import Comparison

if TYPE_CHECKING:
    from excise.evidence.auditing import Audit

TITLE = "Deletion report"


def write_report(
    audit: Audit,
    path: str | Path,
    *,
    title: str = TITLE,
    samples: Sequence[SampleView] | None = None,
    maps: Sequence[SensitivityMap] | None = None,
    comparison: Comparison | None = None,
    settings: Mapping[str, Any] | None = None,
    reference: str | None = None,
    operator: str | None = None,
    file_hashes: Mapping[str, str] | None = None,
    when: datetime | None = None,
) -> None:
    """Write an audit as one HTML file that anybody can read, without a network.

    Args:
        audit: What was measured.
        path: The file.
        title: The heading.
        samples: What to show of the samples (see ``sample_views``); None for their ids and hashes alone, since a proof
            of deletion should not keep the data.
        maps: Where the models look (see ``sensitivity_maps``), which shows something of the samples as well.
        comparison: Other methods on the same kind of request (see ``compare``).
        settings: What the request was carried out with, for the record. Paths are left out.
        reference: What the request is filed under, such as a letter's number.
        operator: Who carried it out.
        file_hashes: SHA-256 of weights files, as ``sha256sum`` gives it, by what they are: ``"before"``, ``"after"``.
        when: The date of the report; None for now.
    """
    if Path(path).suffix.lower() not in (".html", ".htm"):
        raise InputError(f"path {path}: the report is a page, so its name must end in .html.")
    page = html(
        audit,
        title=title,
        samples=samples,
        maps=maps,
        comparison=comparison,
        settings=settings,
        reference=reference,
        operator=operator,
        file_hashes=file_hashes,
        when=when,
    )
    write_whole(path, page)


class PageOptions(TypedDict, total=False):
    """Those of ``write_report``."""

    title: str
    samples: Sequence[SampleView] | None
    maps: Sequence[SensitivityMap] | None
    comparison: Comparison | None
    settings: Mapping[str, Any] | None
    reference: str | None
    operator: str | None
    file_hashes: Mapping[str, str] | None
    when: datetime | None


def html(audit: Audit, **options: Unpack[PageOptions]) -> str:
    """The report as text; see ``write_report``."""
    date, comparison = options.get("when") or datetime.now(UTC), options.get("comparison")
    return render(
        "page.html",
        title=options.get("title", TITLE),
        date=date.astimezone(UTC),
        version=excise.__version__,
        style=stylesheet(),
        request=sections.request(audit, options.get("reference"), options.get("operator")),
        result=sections.result(audit),
        figures=sections.figures(audit),
        losses=sections.losses(audit),
        attack=sections.attack(audit),
        network=sections.network(audit.change),
        shown=shown(options.get("samples") or (), options.get("maps") or ()),
        guarantee=sections.guarantee(audit.change),
        comparison=None if comparison is None else sections.methods(comparison),
        relearning=plots.relearning(audit),
        near_duplicates=audit.near_duplicates,
        record=record(audit, options.get("settings") or {}, options.get("file_hashes") or {}),
    )
