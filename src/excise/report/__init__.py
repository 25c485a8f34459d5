"""The proof of deletion as one HTML file: what was asked, what came of it, and how it was measured."""

from excise.report.page import html, write_report
from excise.report.samples import SampleView, SensitivityMap, sample_views, sensitivity_maps
from excise.report.sections import Comparison

__all__ = ["Comparison", "SampleView", "SensitivityMap", "html", "sample_views", "sensitivity_maps", "write_report"]
