"""Nothing that data holds may command a terminal."""

import sys
import unicodedata

import pandas as pd
import pytest
import torch
from safetensors.torch import save_file

from excise import cli
from excise._support.visible import visible

EVIL = "a\x1b]0;EVIL\x07\x9b31m\u202egpj\u2066\r\n\x00"


@pytest.mark.slow
def test_every_character_is_harmless_or_escaped():
    for code in range(0x110000):
        shown = visible(chr(code))
        if shown != chr(code):
            assert shown.isascii()
            assert shown.isprintable()
        else:
            assert unicodedata.category(shown) not in ("Cc", "Cs", "Zl", "Zp")
            assert unicodedata.bidirectional(shown) not in (
                "LRE",
                "RLE",
                "LRO",
                "RLO",
                "PDF",
                "LRI",
                "RLI",
                "FSI",
                "PDI",
            )
    assert visible("a\tb\nc\x1b", keep="\n") == "a\\tb\nc\\x1b"


@pytest.fixture
def said(monkeypatch, capsys):
    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["excise", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        captured = capsys.readouterr()
        return exit_.value.code or 0, captured.out, captured.err

    return call


def harmless(text):
    return all(one.isprintable() or one == "\n" for one in text)


@pytest.mark.slow
def test_names_of_columns_and_levels(said, tmp_path):
    name = EVIL.replace("\x00", "").replace("\r\n", " ")
    frame = pd.DataFrame({name: range(50), "kind": [f"{name}{i % 2}" for i in range(50)]})
    frame["y"] = frame[name] * 2.0
    frame["same"] = name
    frame.to_csv(tmp_path / "t.csv", index=False)
    code, out, err = said("blanket", tmp_path / "t.csv", "--target", "y")
    assert code == 0, err
    assert harmless(out)
    assert "\\x1b]0;EVIL\\x07" in out
    assert harmless(said("blanket", tmp_path / "t.csv", "--target", "y", "--json")[1])
    code, _, err = said("blanket", tmp_path / "t.csv", "--target", "nope")
    assert code == 1
    assert harmless(err)
    assert err.count("\n") == 1
    frame.rename(columns={"y": EVIL}).to_parquet(tmp_path / "t.parquet")
    code, out, err = said("blanket", tmp_path / "t.parquet", "--target", EVIL[:-1])
    assert harmless(out + err)


def test_names_of_weights(said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil_names.py").write_text(
        "import torch, excise\n"
        "def task():\n"
        "    data = torch.utils.data.TensorDataset(torch.randn(9, 2), torch.arange(9) % 2)\n"
        "    return excise.Task(torch.nn.Linear(2, 2), torch.nn.CrossEntropyLoss(), data)\n"
    )
    save_file({EVIL: torch.zeros(2), "weight": torch.zeros(2, 2), "bias": torch.zeros(2)}, tmp_path / "w.safetensors")
    words = ("forget", "--task", "evil_names:task", "--ids", 1, "--model", "w.safetensors", "--out", "o.pt")
    code, out, err = said(*words)
    assert (code, out) == (1, "")
    assert "has unknown a\\x1b]0;EVIL" in err
    assert harmless(err)
    assert err.count("\n") == 1
