"""``excise forget`` and ``excise slices``, from files to files."""

import json
import pickle

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from excise.errors import ExciseError


@pytest.fixture
def weights(tmp_path):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.LayerNorm(5), nn.Linear(5, 2))
    save_file(model.state_dict(), tmp_path / "in.safetensors")
    torch.save(model.state_dict(), tmp_path / "in.pt")
    return model.state_dict()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::excise.unlearning.convergence.NotConvergedWarning")
@pytest.mark.parametrize("name", ["in.safetensors", "in.pt"])
@pytest.mark.parametrize("out", ["out.safetensors", "out.pt"])
def test_from_file_to_file(run, weights, tmp_path, name, out):
    done = run("forget", "--task", "forget_factory:task", "--ids", "3,5,9", "--model", name, "--out", out, "--json")
    assert done.exit_code == 0, done.output
    answer = json.loads(done.stdout)
    assert answer["ids"] == [3, 5, 9]
    assert answer["certificate"]["kind"] == "heuristic"
    new = load_file(tmp_path / out) if "safe" in out else torch.load(tmp_path / out, weights_only=True)
    assert new.keys() == weights.keys()
    assert any(not torch.equal(new[key], weights[key]) for key in new)
    assert torch.equal(new["2.weight"], weights["2.weight"])


@pytest.mark.filterwarnings("ignore::excise.unlearning.convergence.NotConvergedWarning")
def test_ids_from_a_file_and_drift(run, tmp_path):
    (tmp_path / "ids.txt").write_text("3\n5\n")
    done = run("forget", "--task", "forget_factory:task", "--ids-file", "ids.txt", "--out", "o.pt", "--method", "drift")
    assert done.exit_code == 0, done.output
    assert "forgot 2 samples" in done.output


def test_slices_are_listed(run):
    done = run("slices", "--task", "forget_factory:task")
    assert "5 slices" in done.output
    assert "7 slices, 37 of 47 trainable parameters" in done.output
    assert json.loads(run("slices", "--task", "forget_factory:task", "--json").output)[0]["parameters"] == 25


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"--ids": None}, "one of --ids, --ids-file, --forget and --keys"),
        ({"--ids": "3,x"}, "ids must be whole numbers, not 'x'"),
        ({"--ids": "99"}, "ids must be from 0 to 79"),
        ({"--ids": None, "--ids-file": "none.txt"}, "none.txt: no such file"),
        ({"--task": "forget_factory"}, "must be given as module:factory"),
        ({"--task": "no_such_module:x"}, "can't be imported"),
        ({"--task": "forget_factory:absent"}, "has no function 'absent'"),
        ({"--task": "forget_factory:nothing"}, "must return an excise.Task"),
        ({"--task": "forget_factory:needs_more"}, "must be a function that needs no arguments"),
        ({"--model": "none.pt"}, "none.pt: no such file"),
        ({"--model": "forget_factory.py"}, "read from .safetensors or .pt"),
        ({"--model": "broken.safetensors"}, "broken.safetensors: could not be read"),
        ({"--model": "unsafe.pt"}, "unsafe.pt"),
        ({"--model": "other.safetensors"}, "lacks"),
        ({"--out": "out.txt"}, "must end in .safetensors"),
        ({"--out": "nowhere/out.pt"}, "there is no folder nowhere"),
    ],
)
@pytest.mark.filterwarnings("ignore::excise.unlearning.convergence.NotConvergedWarning")
def test_what_goes_wrong_is_said(run, tmp_path, changes, message):
    (tmp_path / "broken.safetensors").write_text("no")
    (tmp_path / "unsafe.pt").write_bytes(pickle.dumps({"a": print}))
    save_file({"a": torch.zeros(2)}, tmp_path / "other.safetensors")
    options = {"--task": "forget_factory:task", "--ids": "3", "--out": "o.pt"} | changes
    done = run("forget", *(part for pair in options.items() if pair[1] is not None for part in pair))
    assert isinstance(done.exception, ExciseError)
    assert message in str(done.exception)


@pytest.mark.filterwarnings("ignore::excise.unlearning.convergence.NotConvergedWarning")
def test_the_record_is_written(run, weights, tmp_path):  # noqa: ARG001
    done = run(
        *("forget", "--task", "forget_factory:task", "--ids", "3", "--model", "in.pt"),
        *("--out", "out.pt", "--report", "record.json", "--seed", 7, "--method", "step"),
    )
    assert done.exit_code == 0, done.output
    assert "wrote record.json" in done.output
    record = json.loads((tmp_path / "record.json").read_text())
    assert record["ids"] == [3]
    assert record["settings"]["seed"] == 7
    assert record["settings"]["method"]["name"] == "step"
    assert record["settings"]["method"]["selection"]["share"] == 0.3
    assert record["settings"]["guard"]["factor"] == 1.5
    assert record["forgotten"] == [3]
    assert len(record["fingerprint"]["ordered"]) == 64
    assert record["certificate"]["kind"] == "heuristic"
    assert set(record["stages"]) == {"watching the samples", "choosing slices", "taking the step"}


FORGET = ("forget", "--task", "forget_factory:tested", "--ids", "3,5", "--out", "out.pt")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::excise.unlearning.convergence.NotConvergedWarning")
@pytest.mark.parametrize("shown", [False, True])
def test_a_page_as_report(run, tmp_path, shown):
    done = run(*FORGET, "--report", "proof.html", *["--show-samples"] * shown)
    assert done.exit_code == 0, done.output
    page = (tmp_path / "proof.html").read_text()
    assert "Deletion report" in page
    assert "wrote proof.html" in done.output
    assert ("The samples</h2>" in page) == shown


@pytest.mark.usefixtures("weights")
@pytest.mark.filterwarnings("ignore::excise.unlearning.convergence.NotConvergedWarning")
def test_an_audit_of_two_files(run, tmp_path):
    assert run(*FORGET, "--model", "in.pt", "--method", "step").exit_code == 0
    words = ["audit", "--task", "forget_factory:tested", "--forget", "ids:3,5", "--original", "in.pt"]
    words += ["--unlearned", "out.pt"]
    done = run(*words, "--json")
    assert done.exit_code == 0, done.output
    record = json.loads(done.stdout)
    assert record["ids"] == [3, 5]
    assert record["original"]["model_hash"] != record["unlearned"]["model_hash"]
    assert record["retrained"] == []
    spoken = run(*words, "--report", "proof.html")
    assert record["verdict"]["sentence"] in " ".join(spoken.output.split())
    assert (tmp_path / "proof.html").is_file()


def test_a_report_of_another_kind_is_refused_before_any_work(run, tmp_path):
    done = run(*FORGET, "--report", "proof.docx")
    assert isinstance(done.exception, ExciseError)
    assert ".html" in str(done.exception)
    assert not (tmp_path / "out.pt").exists()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::excise.unlearning.convergence.NotConvergedWarning")
@pytest.mark.parametrize("method", ["drift", "thorough", "class", "descent", "fine-tune"])
def test_a_rule_instead_of_ids_and_a_method(run, method):
    words = ["forget", "--task", "forget_factory:tested", "--forget", "random:3", "--out", "out.pt", "--method", method]
    done = run(*words, "--json")
    assert done.exit_code == 0, done.output
    assert len(json.loads(done.stdout)["ids"]) == 3


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--report", "nowhere/proof.html"], "there is no folder nowhere"),
        (["--report", "record.json", "--retrainings", "3"], "are for the page"),
        (["--show-samples"], "are for the page"),
        (["--method", "drft"], "Did you mean 'drift'"),
        (["--method", "drift", "--set", "size=2"], "Drift does not heed size; Step does"),
        (["--method", "descent", "--set", "selection.chare=2"], "PerLayer does not heed chare"),
        (["--method", "step", "--set", "size.deep=2"], "size has no options of its own"),
        (["--set", "steps"], "OPTION=VALUE, not 'steps'"),
        (["--method", "step", "--set", "size=abc"], "size must be a positive number, not 'abc'"),
        (["--method", "ssd", "--guard", "3"], "ssd does not heed guard"),
        (["--method", "ssd", "--set", "size=3"], "ssd does not heed size"),
        (["--method", "step", "--set", "selection=al"], "Did you mean 'all'"),
        (["--guard", "0.5"], "factor of 1 or more, or none, not '0.5'"),
        (["--guard", "x"], "not 'x' (it is no number)"),
        (["--method", "descent", "--guard", "2"], "descent does not heed guard; step and drift do"),
        (["--forgotten", "none.txt"], "none.txt: no such file"),
        (["--keys", "ann"], "one of --ids"),
        (["--forget", "class:1"], "one of --ids, --ids-file, --forget and --keys"),
    ],
)
def test_options_that_do_not_fit_are_refused_before_any_work(run, tmp_path, words, said):
    done = run(*FORGET, *words)
    assert isinstance(done.exception, ExciseError)
    assert said in str(done.exception)
    assert not (tmp_path / "out.pt").exists()


def test_text_by_a_perturbation_of_ones_own(run, tmp_path):
    words = ("forget", "--task", "forget_factory:texts", "--ids", "3", "--out", "w.safetensors")
    refused = run(*words)
    assert "--perturbation MODULE:FACTORY" in str(refused.exception)
    wrong = run(*words, "--perturbation", "forget_factory:nothing")
    assert "must return what is called as perturbation(inputs, copies, generator)" in str(wrong.exception)
    assert not (tmp_path / "w.safetensors").exists()
    done = run(*words, "--perturbation", "forget_factory:other_words")
    assert done.exit_code == 0, done.exception
    assert (tmp_path / "w.safetensors").exists()
