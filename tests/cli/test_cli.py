"""The command line, as a user meets it."""

import json
import os
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest


@pytest.fixture
def run(run_main):
    return run_main


@pytest.fixture
def frame():
    rng = np.random.default_rng(0)
    n = 400
    dose, age = rng.standard_normal(n), rng.integers(20, 80, n)
    color = rng.choice(["red", "green", "blue"], n)
    return pd.DataFrame(
        {
            "id": [f"p{i}" for i in range(n)],
            "dose": dose,
            "age": age,
            "color": color,
            "sex": rng.choice(["f", "m"], n),
            "same": 1,
            "when": pd.date_range("2020-01-01", periods=n).astype(str),
            "response": dose**2 + 2.0 * (color == "red") + 0.05 * rng.standard_normal(n),
        }
    )


@pytest.fixture
def csv(frame, tmp_path):
    frame.to_csv(tmp_path / "t.csv", index=False)
    return tmp_path / "t.csv"


def test_blanket_of_a_csv(run, csv):
    code, out, err = run("blanket", csv, "--target", "response")
    assert (code, err) == (0, "")
    assert "color=red" in out
    assert "dose" in out
    assert "█" in out
    flat = " ".join(out.split())
    assert "color is categorical (3 levels): taken as 0/1 columns color=blue, color=green, color=red." in flat
    assert "sex is categorical (2 levels): taken as 0/1 columns sex=m." in flat
    assert "Left out id: text with 400 different values" in flat
    assert "Left out, because always the same: same." in flat
    assert "none of the other columns tells anything more about response" in flat


def test_json(run, csv):
    code, out, _ = run("blanket", csv, "--target", "response", "--json")
    found = json.loads(out)
    assert code == 0
    assert {step["column"] for step in found["blanket"][:2]} == {"dose", "color=red"}
    assert all(0 < step["score"] <= 1 for step in found["blanket"])
    assert (found["target"], found["rows"]) == ("response", 400)


def test_parquet_gives_the_same(run, csv, frame, tmp_path):
    pytest.importorskip("pyarrow")
    frame.to_parquet(tmp_path / "t.parquet")
    same = [run("blanket", path, "--target", "response", "--json")[1] for path in (csv, tmp_path / "t.parquet")]
    assert same[0] == same[1]


@pytest.mark.parametrize(("name", "separator"), [("t.csv", ";"), ("t.tsv", "\t"), ("t.csv.gz", ",")])
def test_other_separators_and_compression(run, frame, tmp_path, name, separator):
    frame.to_csv(tmp_path / name, sep=separator, index=False)
    code, out, _ = run("blanket", tmp_path / name, "--target", "response", "--json", "--max-features", 1)
    assert code == 0
    assert json.loads(out)["limited"]


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_plot(run, csv, tmp_path, ending):
    pytest.importorskip("matplotlib")
    picture = tmp_path / f"blanket.{ending}"
    assert run("blanket", csv, "--target", "response", "--plot", picture)[0] == 0
    assert picture.stat().st_size > 1000


def test_rows_with_gaps_are_left_out_and_said(run, frame, tmp_path):
    frame.loc[:9, "age"] = np.nan
    frame.loc[20, "dose"] = np.inf
    frame["empty"] = np.nan
    frame.to_csv(tmp_path / "gaps.csv", index=False)
    _, out, _ = run("blanket", tmp_path / "gaps.csv", "--target", "response", "--json")
    assert json.loads(out)["rows"] == 389
    notes = " ".join(json.loads(out)["notes"])
    assert "Left out, because empty: empty." in notes
    assert "Left out 11 of 400 rows, because a value is missing (most often age)." in notes


def test_dates_and_booleans_become_numbers(run, frame, tmp_path):
    pytest.importorskip("pyarrow")
    frame = frame.assign(when=pd.to_datetime(frame["when"]), treated=frame["dose"] > 0)
    frame.to_parquet(tmp_path / "t.parquet")
    _, out, _ = run("blanket", tmp_path / "t.parquet", "--target", "treated", "--json")
    assert json.loads(out)["blanket"][0]["column"] == "dose"
    assert "when is a date: counted in days." in json.loads(out)["notes"]


def test_nothing_to_find(run, tmp_path):
    high = np.arange(50) % 2  # so the neighbour in a is always of the other half: the coefficient is negative
    y = high + np.random.default_rng(3).random(50)
    pd.DataFrame({"a": np.arange(50), "y": y}).to_csv(tmp_path / "t.csv", index=False)
    code, out, err = run("blanket", tmp_path / "t.csv", "--target", "y")
    assert (code, err) == (0, "")
    assert "No column tells anything about y" in out
    assert json.loads(run("blanket", tmp_path / "t.csv", "--target", "y", "--json")[1])["blanket"] == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.csv", "--target", "y"], "missing.csv: no such file."),
        (["{csv}", "--target", "respnse"], "The table has no column 'respnse'. Did you mean 'response'?"),
        (["{csv}", "--target", "zzz"], "The table has no column 'zzz'. It has: id, dose, age"),
        (["{csv}", "--target", "color"], "The target 'color' is text (such as "),
        (["{folder}", "--target", "y"], "not a table that can be read"),
        (["{folder}/broken.parquet", "--target", "y"], "broken.parquet: could not be read"),
        (["{folder}/empty.csv", "--target", "y"], "empty.csv: could not be read"),
        (["{folder}/gaps.csv", "--target", "y"], "Only 0 rows have a value in every column"),
        (["{folder}/alone.csv", "--target", "y"], "no usable column besides 'y'"),
        (["{folder}/header.csv", "--target", "y"], "The target 'y' is empty, not numbers"),
        (["{folder}/short.csv", "--target", "y"], "The table has 2 rows; at least 3"),
        (["{folder}/same.csv", "--target", "y"], "The target 'y' is always 1, so nothing can tell it."),
        (["{folder}/twice.csv", "--target", "y"], "a second column named 'a=b'"),
        (["{csv}", "--target", "RESPONSE"], "Did you mean 'response'?"),
        (["x" * 300 + ".csv", "--target", "y"], "can't be opened"),
    ],
)
def test_errors_are_one_line(run, csv, tmp_path, arguments, message):
    (tmp_path / "broken.parquet").write_text("not parquet")
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "gaps.csv").write_text("a,b,y\n1,,1\n,2,2\n3,,3\n")
    (tmp_path / "header.csv").write_text("a,y\n")
    (tmp_path / "short.csv").write_text("a,y\n1,2\n2,3\n")
    (tmp_path / "same.csv").write_text("a,y\n1,1\n2,1\n3,1\n")
    (tmp_path / "twice.csv").write_text("a,a=b,y\nb,1,1\nc,2,2\nd,3,3\n")
    (tmp_path / "alone.csv").write_text("a,y\n1,1\n1,2\n1,3\n")
    code, out, err = run("blanket", *(a.format(csv=csv, folder=tmp_path) for a in arguments))
    assert code == 1
    assert out == ""
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(("name", "message"), [("a.docx", "could not be written"), ("a", "needs an ending")])
def test_a_plot_that_fails_leaves_the_result_printed(run, csv, tmp_path, name, message):
    code, out, err = run("blanket", csv, "--target", "response", "--plot", tmp_path / name)
    assert code == 1
    assert "dose" in out
    assert message in err
    assert err.count("\n") == 1


def test_odd_names_are_shown_as_they_are(run, tmp_path):
    rng = np.random.default_rng(0)
    odd = pd.DataFrame(rng.random((200, 2)), columns=["x[/b]", ":smile: $_{"])
    odd["[red]y[/]"] = odd.sum(axis=1)
    odd.to_csv(tmp_path / "odd.csv", index=False)
    code, out, err = run("blanket", tmp_path / "odd.csv", "--target", "[red]y[/]", "--plot", tmp_path / "a.png")
    assert (code, err) == (0, "")
    for name in odd.columns:
        assert name in out


def test_a_trailing_comma_does_not_shift_the_columns(run, tmp_path):
    rows = "".join(f"{i},{i * i % 17},{i}," + "\n" for i in range(60))
    (tmp_path / "t.csv").write_text("a,b,y\n" + rows)
    _, out, _ = run("blanket", tmp_path / "t.csv", "--target", "y", "--json")
    assert json.loads(out)["blanket"][0]["column"] == "a"


@pytest.mark.slow
def test_a_terminal_without_bars_still_gets_the_numbers(csv):
    done = subprocess.run(
        [sys.executable, "-m", "excise", "blanket", str(csv), "--target", "response"],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=True,
    )
    assert b"color=red" in done.stdout


def test_usage_errors_have_exit_code_two(run, csv):
    assert run("blanket", csv)[0] == 2
    assert run("blankt")[0] == 2


@pytest.mark.parametrize("arguments", [["--help"], ["blanket", "--help"], ["--version"]])
def test_help(run, arguments):
    code, out, _ = run(*arguments)
    assert code == 0
    assert "excise" in out


def test_help_loads_nothing_heavy():
    code = (
        "import sys; from click.testing import CliRunner; from excise.cli import cli;"
        "done = CliRunner().invoke(cli, ['--help']); assert done.exit_code == 0;"
        "print(*({'torch', 'numpy', 'pandas', 'rich', 'sklearn'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert done.stdout.split() == []


@pytest.mark.parametrize("module", ["excise", "excise.cli"])
def test_the_package_runs_as_a_module(module):
    done = subprocess.run([sys.executable, "-m", module, "--version"], capture_output=True, check=True)
    assert done.stdout.startswith(b"excise, version ")
