"""Whatever goes wrong is one line that says what and why; each of these once ended in a traceback, hang or silence."""

import bz2
import gzip
import json
import lzma
import os
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from excise import cli
from excise.errors import ExciseError, InputError
from excise.reproduce.framework.run import Run
from excise.statistics import tables, unpacking
from excise.task.loading import load_task
from excise.task.requests import ids_in_file, ids_in_text, parse_request
from excise.task.weights import load_weights

PACK = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}
TEXT = ("a,b,y\n" + "".join(f"{i},{i * i % 17},{i / 3}\n" for i in range(500))).encode()


@pytest.fixture
def said(monkeypatch, capsys):
    """What the command says and its exit code."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["excise", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        captured = capsys.readouterr()
        assert captured.err.strip().count("\n") == 0, captured.err
        return exit_.value.code or 0, captured.out, captured.err

    return call


@pytest.fixture
def arrow():
    return pytest.importorskip("pyarrow")


@pytest.mark.parametrize("ending", PACK)
@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "header only", "other"])
def test_compressed_tables_that_are_damaged(said, tmp_path, ending, damage):
    whole = PACK[ending](TEXT)
    middle = len(whole) // 2
    content = {
        "cut": whole[:-20],
        "flipped": whole[:middle] + bytes(255 - one for one in whole[middle : middle + 8]) + whole[middle + 8 :],
        "empty": b"",
        "header only": whole[:6],
        "other": b"no such thing",
    }[damage]
    (tmp_path / f"t.csv.{ending}").write_bytes(content)
    code, out, err = said("blanket", tmp_path / f"t.csv.{ending}", "--target", "y")
    assert (code, out) == (1, "")
    assert "could not be read" in err


def odd_columns(arrow):
    count = 30
    return {
        "lists": arrow.array([[i % 3] for i in range(count)]),
        "lists of lists": arrow.array([[[i]] for i in range(count)]),
        "structs": arrow.array([{"k": i} for i in range(count)]),
        "binary": arrow.array([b"\xff%d" % (i % 3) for i in range(count)]),
        "year 5138 in µs": arrow.array([10**17 + i for i in range(count)], arrow.timestamp("us")),
        "year 5138 with a zone": arrow.array([10**17 + i for i in range(count)], arrow.timestamp("us", tz="UTC")),
        "year -5138": arrow.array([-(10**11) - i for i in range(count)], arrow.timestamp("s")),
        "durations": arrow.array(list(range(count)), arrow.duration("s")),
        "times": arrow.array(list(range(count)), arrow.time32("s")),
        "dates": arrow.array(list(range(count)), arrow.date32()),
        "nothing": arrow.nulls(count),
    }


KINDS = ["lists", "lists of lists", "structs", "binary", "year 5138 in µs", "year 5138 with a zone", "year -5138"]
KINDS += ["durations", "times", "dates", "nothing"]


@pytest.mark.parametrize("kind", KINDS)
def test_parquet_columns_of_every_kind(said, tmp_path, arrow, kind):
    from pyarrow import parquet

    numbers = np.arange(30.0)
    table = arrow.table({"y": numbers, "a": numbers % 7, "odd": odd_columns(arrow)[kind]})
    parquet.write_table(table, tmp_path / "t.parquet")
    code, out, err = said("blanket", tmp_path / "t.parquet", "--target", "y", "--json")
    assert code == 0, err
    assert json.loads(out)["rows"] == 30
    code, _, err = said("blanket", tmp_path / "t.parquet", "--target", "odd")
    assert code == 1
    assert "The target 'odd' " in err


@pytest.mark.parametrize("text", ["{}", "no", "[]", '{"columns": [], "index_columns": ["zz"], "column_indexes": []}'])
def test_damaged_metadata_of_parquet(said, tmp_path, arrow, text):
    from pyarrow import parquet

    table = arrow.table({"y": [1.0, 2.0, 3.0], "a": [1, 2, 3]}).replace_schema_metadata({"pandas": text})
    parquet.write_table(table, tmp_path / "t.parquet")
    code, _, err = said("blanket", tmp_path / "t.parquet", "--target", "y")
    assert code == 1
    assert "t.parquet: could not be read" in err


def test_a_plot_in_a_format_that_needs_latex(said, tmp_path):
    (tmp_path / "t.csv").write_bytes(TEXT)
    code, _, err = said("blanket", tmp_path / "t.csv", "--target", "y", "--plot", tmp_path / "a.pgf")
    assert code == 1
    assert "needs LaTeX" in err


def test_a_pipe_is_refused_and_not_waited_for(said, tmp_path):
    for name in ("t.csv", "t.csv.gz", "t.parquet", "w.pt", "ids.txt"):
        os.mkfifo(tmp_path / name)
    for name in ("t.csv", "t.csv.gz", "t.parquet"):
        assert "is a pipe or device" in said("blanket", tmp_path / name, "--target", "y")[2]
    with pytest.raises(InputError, match="is a pipe"):
        load_weights(nn.Linear(1, 1), tmp_path / "w.pt")
    with pytest.raises(InputError, match="is a pipe"):
        ids_in_file(tmp_path / "ids.txt")


@pytest.mark.slow
@pytest.mark.parametrize("ending", PACK)
def test_a_bomb_is_not_unpacked(said, tmp_path, ending, monkeypatch):
    monkeypatch.setattr(unpacking, "SUSPECT_BYTES", 10 * 2**20)
    bomb = tmp_path / f"t.csv.{ending}"
    bomb.write_bytes(PACK[ending](b"y,a\n" + b"1,2\n" * (3 * 2**20)))
    code, _, err = said("blanket", bomb, "--target", "y")
    assert code == 1
    assert "bytes unpack to 10,485,760 or more" in err.replace("11,534,336", "10,485,760")
    assert "--max-gigabytes" in err
    with pytest.raises(InputError, match="unpack to"):
        tables.read(bomb, max_bytes=2**20)
    assert len(tables.read(bomb, max_bytes=2**30)) == 3 * 2**20


@pytest.mark.slow
def test_a_parquet_bomb(tmp_path, arrow):
    from pyarrow import parquet

    table = arrow.table({"y": arrow.DictionaryArray.from_arrays(np.zeros(30_000_000, np.int8), ["x"])})
    parquet.write_table(table, tmp_path / "t.parquet", compression="zstd")
    with pytest.raises(InputError, match="unpack to 240,000,000 or more"):
        tables.read(tmp_path / "t.parquet")


@pytest.mark.slow
def test_a_hundred_thousand_columns_are_quick_and_more_are_refused(said, tmp_path):
    names = [f"c{i}" for i in range(100_000)]
    rows = [",".join(map(str, np.random.default_rng(k).random(100_000).round(3))) for k in range(4)]
    (tmp_path / "t.csv").write_text("\n".join([",".join(["y", *names[1:]]), *rows]))
    began = time.perf_counter()
    code, _, err = said("blanket", tmp_path / "t.csv", "--target", "nope")
    assert code == 1
    assert len(err) < 500
    prepared = tables.prepare(tables.read(tmp_path / "t.csv"), "y")
    assert prepared.columns.shape == (4, 99_999)
    empty = pd.DataFrame(np.nan, index=range(4), columns=names).assign(y=range(4), b=range(4))
    assert "c0, c1, c2, c3, c4, c5, c6, c7, c8, c9 and 99,990 more" in tables.prepare(empty, "y").notes[0]
    assert time.perf_counter() - began < 30
    (tmp_path / "w.csv").write_text("y" + "," * 300_000 + "\n1\n")
    assert "has 300,001 columns" in said("blanket", tmp_path / "w.csv", "--target", "y")[2]


WRONG_IDS = ["²", "--3", "٣", "1_0", "-0", "9" * 5000, "3 ²", "+3", "3.0", "0x3", "1e3", "-", "１"]


@pytest.mark.parametrize("text", WRONG_IDS)
def test_ids_that_are_no_plain_numbers(tmp_path, text):
    with pytest.raises(InputError, match="whole numbers") as caught:
        ids_in_text(text)
    assert len(str(caught.value)) < 200
    (tmp_path / "ids.txt").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match="whole numbers"):
        ids_in_file(tmp_path / "ids.txt")


def test_ids_in_a_file_that_is_not_text(tmp_path):
    for content in (b"\xff\xfe3\x00", b"3\n\x80", "3".encode("utf-16")):
        (tmp_path / "ids.txt").write_bytes(content)
        with pytest.raises(InputError, match="in UTF-8"):
            ids_in_file(tmp_path / "ids.txt")
    (tmp_path / "ids.txt").write_bytes("3\n5".encode("utf-8-sig"))
    assert ids_in_file(tmp_path / "ids.txt").tolist() == [3, 5]
    with pytest.raises(InputError, match="is a folder"):
        ids_in_file(tmp_path)


@pytest.fixture
def task(make_task):
    return make_task("tested")


def test_a_long_list_of_ids_is_not_taken_for_a_files_name(task):
    assert len(parse_request("ids:" + ",".join(map(str, range(79))), task)) == 79
    assert len(parse_request("ids:" + ", ".join(["   "] * 500) + "3", task)) == 1
    for share in ("1_0%", "١%", "nan%", "infinity%", "1e400%"):
        with pytest.raises(InputError, match="a share must be"):
            parse_request(f"random:{share}", task)


@pytest.mark.parametrize("name", ["a\0b.pt", "x" * 300 + ".pt", "\ud800.pt"])
def test_names_that_no_file_can_have(run, name):
    words = ("forget", "--task", "forget_factory:tested", "--ids", "3")
    for more in (
        ("--out", name),
        ("--out", "o.pt", "--model", name),
        ("--out", "o.pt", "--report", name[:-2] + "json"),
    ):
        done = run(*words, *more)
        assert isinstance(done.exception, ExciseError | SystemExit), (more, done.exception)
        assert done.exit_code in (1, 2)
        assert not list(Path().glob("o.pt*"))


@pytest.mark.parametrize(
    ("address", "message"),
    [
        (".x:y", "is no name of a module"),
        ("a b:y", "is no name of a module"),
        ("..:y", "is no name of a module"),
        ("json:loads", "needs no arguments"),
        ("json:nope", "has no function"),
        ("json:dumps.x", "has no function"),
        ("time:time", "must return an excise.Task, but returned a float"),
        ("broken_a:task", "can't be imported (SyntaxError"),
        ("broken_b:task", "can't be imported (ZeroDivisionError: division by zero, broken_b.py line 1)"),
        ("broken_c:task", "broken_c:task failed (KeyError: 'x', broken_c.py line 2)"),
        ("broken_d:task", "No module named 'nowhere'"),
    ],
)
def test_tasks_that_can_not_be_made(tmp_path, monkeypatch, address, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken_a.py").write_text("def task(:\n")
    (tmp_path / "broken_b.py").write_text("1 / 0\n")
    (tmp_path / "broken_c.py").write_text("def task():\n    return {}['x']\n")
    (tmp_path / "broken_d.py").write_text("import nowhere\n")
    with pytest.raises(InputError) as caught:
        load_task(address)
    assert message in str(caught.value)


@pytest.mark.parametrize("seed", [2**63, 2**64, 10**40])
def test_seeds_that_are_too_large(run, task, seed):
    done = run("forget", "--task", "forget_factory:tested", "--ids", "3", "--out", "o.pt", "--seed", seed)
    assert done.exit_code == 2
    assert "is not in the range" in done.output
    from excise import Unlearner

    with pytest.raises(InputError, match="seed must be a whole number from 0 to"):
        Unlearner(task, seed=seed)


def state(**changes):
    return {"weight": torch.zeros(2, 3), "bias": torch.zeros(2), **changes}


WEIGHTS = {
    "int keys": ({1: torch.zeros(2)}, "not a state dict"),
    "list": ([torch.zeros(2)], "not a state dict"),
    "sparse": (state(bias=torch.zeros(2).to_sparse()), "is torch.sparse_coo"),
    "meta": (state(bias=torch.zeros(2, device="meta")), "has no values"),
    "int64": (state(bias=torch.zeros(2, dtype=torch.int64)), "is torch.int64 where the model has torch.float32"),
    "bool": (state(bias=torch.zeros(2, dtype=torch.bool)), "is torch.bool where"),
    "complex": (state(bias=torch.zeros(2, dtype=torch.complex64)), "is torch.complex64 where"),
    "quantized": (state(bias=torch.quantize_per_tensor(torch.zeros(2), 0.1, 0, torch.qint8)), "is quantized"),
    "empty dict": ({}, "lacks bias, weight"),
}


@pytest.mark.parametrize("kind", WEIGHTS)
@pytest.mark.filterwarnings("ignore:TypedStorage")
def test_weights_that_are_not_the_models(tmp_path, kind):
    content, message = WEIGHTS[kind]
    torch.save(content, tmp_path / "w.pt")
    model = nn.Linear(3, 2)
    before = model.weight.detach().clone()
    with pytest.raises(InputError) as caught:
        load_weights(model, tmp_path / "w.pt")
    assert message in str(caught.value)
    assert torch.equal(model.weight, before)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"\x80\x02.", b"{}", b"\0" * 8, b"\xff" * 8])
@pytest.mark.parametrize("name", ["w.pt", "w.safetensors"])
def test_weights_files_that_are_none(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=r"could not be read|not a state dict|more than weights"):
        load_weights(nn.Linear(3, 2), tmp_path / name)


def test_half_precision_is_taken_as_before(tmp_path):
    torch.save({name: part.half() for name, part in state().items()}, tmp_path / "w.pt")
    load_weights(nn.Linear(3, 2), tmp_path / "w.pt")


@pytest.mark.parametrize("ending", ["json", "html"])
def test_a_report_that_can_not_be_written_is_said_before_the_work(run, tmp_path, ending):
    (tmp_path / f"taken.{ending}").mkdir()
    words = ("forget", "--task", "forget_factory:tested", "--ids", "3", "--out", "o.pt")
    done = run(*words, "--report", f"taken.{ending}")
    assert "is a folder" in str(done.exception)
    done = run(*words, "--report", f"forget_factory.py/r.{ending}")
    assert "there is no folder" in str(done.exception)
    assert not (tmp_path / "o.pt").exists()
    if os.geteuid() != 0:
        (tmp_path / "locked").mkdir(mode=0o500)
        assert "can't be written to" in str(run(*words, "--report", f"locked/r.{ending}").exception)


def kept_run(folder):
    from dataclasses import dataclass

    @dataclass(frozen=True)
    class Settings:
        size: int = 1

    return Run(folder, "x", Settings(), data_dir=folder)


@pytest.mark.parametrize("content", ["[]", "null", '"text"', "3", "gone", "folder", "[" * 100_000, "\ud800"])
def test_a_run_whose_record_is_no_record(tmp_path, content):
    kept_run(tmp_path).step("one", lambda: 1)
    file = tmp_path / "steps" / "run.json"
    file.unlink()
    if content == "folder":
        file.mkdir()
    elif content != "gone":
        file.write_bytes(content.encode("utf-8", "surrogatepass"))
    with pytest.raises(InputError, match=r"run\.json is missing or damaged"):
        kept_run(tmp_path)


@pytest.mark.filterwarnings("ignore")
def test_a_step_that_is_a_folder(tmp_path):
    kept_run(tmp_path).step("one", lambda: 1)
    (file,) = (tmp_path / "steps").glob("one*.json")
    file.unlink()
    file.mkdir()
    with pytest.raises(ExciseError, match=file.name):
        kept_run(tmp_path).step("one", lambda: 1)


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory")]
)
def test_too_little_memory_is_one_line(said, monkeypatch, tmp_path, error):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(tables, "read", fail)
    code, _, err = said("blanket", tmp_path / "t.csv", "--target", "y")
    assert code == 1
    assert "out of memory" in err


def test_an_interrupt_is_one_line_and_130(said, monkeypatch, tmp_path):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(tables, "read", stop)
    code, _, err = said("blanket", tmp_path / "t.csv", "--target", "y")
    assert code == 130
    assert err.strip().startswith("excise: stopped")


@pytest.mark.parametrize("error", [RuntimeError("a bug"), EOFError(), KeyError("a")])
def test_what_no_one_expected_stays_a_traceback(monkeypatch, tmp_path, error):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(tables, "read", fail)
    monkeypatch.setattr(sys, "argv", ["excise", "blanket", str(tmp_path / "t.csv"), "--target", "y"])
    with pytest.raises((type(error), RuntimeError)):
        cli.main()
