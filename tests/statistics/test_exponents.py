"""Numbers with very long exponents: pandas' quick reader of numbers reads memory that is not its own, and dies."""

import io
import re
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from excise.statistics import exponents
from excise.statistics.exponents import has_long_exponents
from excise.statistics.tables import read

DEADLY = ["1e6666666667", "0.333E333333333333", "1e2147483648", '"1e"6666666667', '"1e66"66666667', "1e+2147483648"]
CHILD = """
import pathlib, sys
from excise.statistics.tables import read
for file in sorted(pathlib.Path(sys.argv[1]).iterdir()):
    print(file.name, read(file)["x"].dtype)
"""


@pytest.mark.slow
def test_no_number_ends_the_process(tmp_path):
    """In a process of its own, which may die."""
    for place, number in enumerate(DEADLY):
        (tmp_path / f"{place}.csv").write_text(f"x,y\n1.5,2\n{number},1\n")
        (tmp_path / f"{place}s.csv").write_text(f"x;y\n1.5;2\n{number};1\n")
    done = subprocess.run([sys.executable, "-c", CHILD, tmp_path], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(done.stdout.splitlines()) == 2 * len(DEADLY)


@pytest.mark.parametrize(
    ("number", "value"), [("1e4294967295", "1e4294967295"), ("1e-2147483649", 0.0), ("2e0000000003", 2000.0)]
)
def test_long_exponents_are_read_as_what_they_say(tmp_path, number, value):
    """As text, where no number is so large."""
    (tmp_path / "t.csv").write_text(f"x,y\n{number},1\n")
    assert read(tmp_path / "t.csv")["x"][0] == value


def test_usual_numbers_are_read_by_the_quick_reader(tmp_path, monkeypatch):
    import pandas as pd

    asked, plain = [], pd.read_csv

    def watched(*args, **options):
        asked.append(options["float_precision"])
        return plain(*args, **options)

    monkeypatch.setattr(pd, "read_csv", watched)
    (tmp_path / "t.csv").write_text("x,y,when,key\n1e-300,1,2020-01-01,e12\n1.6666666666666667,2,2021-01-01,E-123456\n")
    read(tmp_path / "t.csv")
    assert asked == ["high"]


@given(st.text(alphabet='eE+-"0123456789,\n', max_size=40), st.integers(8, 12), st.integers(1, 50))
def test_exponents_are_found_wherever_parts_of_the_file_end(text, digits, at_once):
    content = (text + "e" + "1" * digits).encode() if len(text) % 2 else text.encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exponents, "_READ_AT_ONCE", at_once)
        found = has_long_exponents(io.BytesIO(content))
    assert found == bool(re.search(rb"[eE][+-]?[0-9]{10}", content.replace(b'"', b"")))
