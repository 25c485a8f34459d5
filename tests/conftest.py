"""Settings of all tests, and a look at those that were skipped.

Tests run in two processes on two cores, so each gets one thread of torch, and so do the programs that it starts; the
package finds the tests' data.
"""

import gc
import os

import pytest
import torch
from data_folder import DATA, LACKING
from hypothesis import settings

EXPECTED = 0  # tests that lack data where there is a folder of data

torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")  # of programs that tests start
settings.register_profile("untimed", deadline=None)  # a busy machine is no defect
settings.load_profile("untimed")
if DATA.is_dir():
    os.environ["EXCISE_DATA"] = str(DATA)


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """What is imported and collected stays until the end: no need to look through it for garbage, then or later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_sessionfinish(session):
    """On CI with a folder of data, too many skips for lack of data are a failure: else nobody would notice them."""
    if _too_many_skipped(session.config) and session.exitstatus == 0:
        session.exitstatus = 1


def pytest_terminal_summary(terminalreporter, config):
    """Say why the session failed."""
    skipped = _too_many_skipped(config)
    if skipped:
        terminalreporter.write_line(
            f"{skipped} tests were skipped for lack of data, {EXPECTED} were expected: complete the folder of data.",
            red=True,
        )


def _too_many_skipped(config):
    """How many tests were skipped for lack of data, or 0 if there is nothing to complain of."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if os.environ.get("CI") != "true" or reporter is None or hasattr(config, "workerinput") or not DATA.is_dir():
        return 0
    skipped = sum(LACKING in str(report.longrepr) for report in reporter.stats.get("skipped", []))
    return skipped if skipped > EXPECTED else 0
