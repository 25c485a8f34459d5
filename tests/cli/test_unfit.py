"""``excise unfit``: files in, files out, and nothing that could run a program without being trusted."""

import json
import pickle

import joblib
import numpy as np
import pandas as pd
import pytest
import skops.io
from click.testing import CliRunner
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.preprocessing import StandardScaler

from excise import cli
from excise.errors import InputError


@pytest.fixture
def table(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(60, 3)), columns=["age", "dose", "weeks"])
    frame["progression"] = frame @ [1.0, 2.0, 3.0] + rng.normal(size=60)
    frame["weight"] = rng.uniform(0.5, 2, 60)
    file = tmp_path / "patients.csv"
    frame.to_csv(file, index=False)
    return file, pd.read_csv(file)


def run(*words):
    return CliRunner().invoke(cli.cli, ["unfit", *map(str, words)], catch_exceptions=False)


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_rows_go_from_a_file_of_skops(table, tmp_path, ending):
    file, frame = table
    frame.to_parquet(file.with_suffix(".parquet"))
    file = file.with_suffix(f".{ending}")
    inputs, target = frame[["age", "dose", "weeks"]], frame["progression"]
    skops.io.dump(Ridge().fit(inputs, target, sample_weight=frame["weight"]), tmp_path / "model.skops")
    options = ("--data", file, "--target", "progression", "--weight", "weight", "--out", tmp_path / "next.skops")
    done = run(tmp_path / "model.skops", *options, "--rows", "17,42")
    assert done.exit_code == 0
    assert done.stdout.startswith("took 2 rows out of 60. Computed in closed form")
    kept = frame.drop(index=[17, 42])
    fresh = Ridge().fit(kept[["age", "dose", "weeks"]], kept["progression"], sample_weight=kept["weight"])
    found = skops.io.load(tmp_path / "next.skops", trusted=[])
    np.testing.assert_allclose(found.coef_, fresh.coef_, rtol=1e-10)
    assert found.feature_names_in_.tolist() == ["age", "dose", "weeks"]


def test_a_pickle_is_opened_only_where_it_is_trusted(table, tmp_path):
    frame = table[1]
    inputs = frame[["age", "dose", "weeks"]].to_numpy()
    joblib.dump(StandardScaler().fit(inputs), tmp_path / "model.joblib")
    frame[["age", "dose", "weeks"]].to_csv(tmp_path / "inputs.csv", index=False)
    options = ("--data", tmp_path / "inputs.csv", "--rows", "0", "--out", tmp_path / "next.joblib")
    with pytest.raises(InputError, match="pickles, which can run any program"):
        run(tmp_path / "model.joblib", *options)
    assert not (tmp_path / "next.joblib").exists()
    done = run(tmp_path / "model.joblib", *options, "--trust", "--json")
    assert json.loads(done.stdout)["rows"] == [0]
    np.testing.assert_allclose(joblib.load(tmp_path / "next.joblib").mean_, inputs[1:].mean(0), rtol=1e-12)


class Harmful:
    def __reduce__(self):
        return (pytest.fail, ("a program in a file was run",))


def test_what_a_file_could_run_is_not_run(table, tmp_path):
    for name in ("model.joblib", "model.pkl"):
        (tmp_path / name).write_bytes(pickle.dumps(Harmful()))
        with pytest.raises(InputError, match="--trust"):
            run(tmp_path / name, "--data", table[0], "--rows", "1", "--out", tmp_path / "next.joblib")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--rows", "one"], "--rows must be whole numbers such as 17,42, not 'one'"),
        (["--rows", "99"], "rows: 99 are not rows of X"),
        (["--rows", "1", "--target", "outcome"], "--target outcome: the table has no such column; it has age"),
        (["--rows", "1", "--target", "age"], "fitted on a column 'age', which the table does not have"),
        (["--rows", "1", "--out", "next.txt"], "the name must end in .skops"),
    ],
)
def test_bad_input_is_named_and_nothing_written(table, tmp_path, words, message, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file, frame = table
    skops.io.dump(LinearRegression().fit(frame[["age", "dose", "weeks"]], frame["progression"]), "model.skops")
    options = ["--data", file, "--out", "next.skops", "--target", "progression", *words]
    with pytest.raises(InputError, match=message):
        run("model.skops", *options)
    assert not (tmp_path / "next.skops").exists()


def test_files_that_are_none_or_damaged_are_refused(table, tmp_path):
    (tmp_path / "model.skops").write_bytes(b"nothing")
    options = ("--data", table[0], "--rows", "1", "--out", tmp_path / "next.skops")
    with pytest.raises(InputError, match="could not be read"):
        run(tmp_path / "model.skops", *options)
    with pytest.raises(InputError, match="there is no such file"):
        run(tmp_path / "other.skops", *options)
    with pytest.raises(InputError, match="not a file of an estimator"):
        run(tmp_path / "model.onnx", *options)
    (tmp_path / "model.joblib").write_bytes(b"nothing")
    with pytest.raises(InputError, match="could not be read"):
        run(tmp_path / "model.joblib", *options, "--trust")
