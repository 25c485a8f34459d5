"""The frame of the experiments: runs that can be stopped, what they refuse, the pages, and the command line."""

import errno
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from data_folder import real
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import TensorDataset

from excise import InputError, Task, reproduce
from excise.cli import cli
from excise.reproduce.framework.experiment import Claim, Experiment
from excise.reproduce.framework.fits import kept_fit
from excise.reproduce.framework.pages import gather, page
from excise.reproduce.framework.run import DiskError, Run, throw_away, write_whole
from excise.reproduce.framework.steps import file_name, values_from_bytes, values_to_bytes
from excise.reproduce.parts.removals import Supported, remove_one_by_one, supported_removals
from excise.training.model_cache import DamagedWarning

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Settings:
    samples: int = 10
    epsilons: tuple[float, ...] = (0.1, 0.01)


def new_run(folder, settings=None, **options):
    return Run(folder, "example", settings or Settings(), **{"data_dir": folder, **options})


# ---- runs that can be stopped


def test_a_kept_step_is_not_made_again(tmp_path):
    made = []
    for _ in range(2):
        run = new_run(tmp_path)
        assert run.step("first", lambda: made.append(1) or {"value": (1, 2)}) == {"value": [1, 2]}
    assert made == [1]


def test_a_value_is_the_same_when_it_comes_from_the_folder(tmp_path):
    values = {"third": 1 / 3, "nan": float("nan"), "tensor": torch.tensor([0.1]).double().numpy(), "none": None}
    first = new_run(tmp_path).step("values", lambda: values)
    assert new_run(tmp_path).step("values", lambda: 1 / 0) == first
    assert first == {"third": 1 / 3, "nan": None, "tensor": [float(torch.tensor([0.1]).double())], "none": None}


def test_tensors_are_kept_too(tmp_path):
    state = {"weights": {"a": torch.arange(3.0)}, "losses": [0.5]}
    new_run(tmp_path).tensors("model", lambda: state)
    again = new_run(tmp_path).tensors("model", lambda: 1 / 0)
    assert torch.equal(again["weights"]["a"], torch.arange(3.0))
    assert again["losses"] == [0.5]


def test_seconds_of_kept_steps_count(tmp_path):
    run = new_run(tmp_path)
    run.step("one", lambda: 1)
    file = tmp_path / "steps" / file_name("one", ".json")
    file.write_bytes(values_to_bytes(replace(values_from_bytes(file.read_bytes(), "one"), seconds=40.0)))
    again = new_run(tmp_path)
    again.step("one", lambda: 1)
    assert again.seconds == 40.0


@pytest.mark.parametrize("stop", [KeyboardInterrupt, MemoryError, ValueError])
def test_a_stop_inside_a_step_leaves_those_before(tmp_path, stop):
    def stopped():
        raise stop

    run = new_run(tmp_path)
    run.step("one", lambda: 1)
    with pytest.raises(stop):
        run.step("two", stopped)
    again = new_run(tmp_path)
    assert again.step("one", lambda: 1 / 0) == 1
    assert again.step("two", lambda: 2) == 2


def test_a_full_disk_leaves_the_last_complete_step(tmp_path, monkeypatch):
    run = new_run(tmp_path)
    run.step("one", lambda: 1)

    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(
            DiskError, match=r"two-\w+\.json: could not be written \(No space left on device\).*are kept"
        ):
            run.step("two", lambda: 2)
    assert sorted(file.name for file in (tmp_path / "steps").iterdir()) == [
        file_name("one", ".json"),
        "run.json",
    ]
    assert new_run(tmp_path).step("one", lambda: 1 / 0) == 1


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    file = tmp_path / "result.json"
    write_whole(file, b"before")

    def interrupted(_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", interrupted)
        with pytest.raises(KeyboardInterrupt):
            write_whole(file, b"after")
    assert file.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [file]


def test_steps_have_names_of_their_own_and_do_not_nest(tmp_path):
    run = new_run(tmp_path)
    run.step("one", lambda: 1)
    with pytest.raises(ValueError, match="'one' is there twice"):
        run.step("one", lambda: 1)
    with pytest.raises(ValueError, match="inside another"):
        run.step("two", lambda: run.step("three", lambda: 1))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"settings": Settings(samples=20)}, "samples 10 there, 20 here"),
        ({"settings": Settings(epsilons=(0.1,))}, r"epsilons \[0\.1, 0\.01\] there, \[0\.1\] here"),
        ({"seed": 3}, "seed 0 there, 3 here"),
        ({"data_dir": Path("elsewhere")}, "data .* there, .*elsewhere' here"),
    ],
)
def test_a_folder_of_another_configuration_is_refused(tmp_path, change, words):
    new_run(tmp_path).step("one", lambda: 1)
    with pytest.raises(InputError, match=rf"holds another run \({words}\).*--out-dir.*--fresh"):
        new_run(tmp_path, **change)
    assert new_run(tmp_path).step("one", lambda: 1 / 0) == 1  # and nothing of it is lost


def test_a_folder_of_another_version_is_refused(tmp_path, monkeypatch):
    new_run(tmp_path).step("one", lambda: 1)
    monkeypatch.setattr("excise.__version__", "9.9")
    with pytest.raises(InputError, match=r"excise '.*' there, '9\.9' here"):
        new_run(tmp_path)


def test_a_folder_whose_record_is_damaged_is_refused(tmp_path):
    new_run(tmp_path).step("one", lambda: 1)
    (tmp_path / "steps" / "run.json").write_text("{")
    with pytest.raises(InputError, match="holds another run"):
        new_run(tmp_path)


def test_a_run_that_made_no_step_does_not_stand_in_the_way(tmp_path):
    """Such as one with a wrong data folder."""
    new_run(tmp_path, data_dir=tmp_path / "nowhere")
    assert new_run(tmp_path).step("one", lambda: 1) == 1
    with pytest.raises(InputError, match="nowhere"):
        new_run(tmp_path, data_dir=tmp_path / "nowhere")


def test_a_trained_model_is_kept_with_losses_trace_and_seconds(tmp_path):
    data = TensorDataset(torch.randn(20, 3), torch.arange(20) % 2)
    task = Task(nn.Linear(3, 2), nn.CrossEntropyLoss(reduction="none"), data)
    run = new_run(tmp_path)
    first = kept_fit(run, "of it", task, epochs=3, recorder=True)
    again = new_run(tmp_path)
    second = again.trained("of it", task.model, lambda: 1 / 0)
    assert again.seconds == run.seconds >= first.seconds == second.seconds
    assert second.losses == first.losses
    assert torch.equal(second.model.weight, first.model.weight)
    for one, other in zip(
        (*first.trace.gradients, *first.trace.parameters),
        (*second.trace.gradients, *second.trace.parameters),
        strict=True,
    ):
        assert list(one) == list(other) == ["weight", "bias"]
        assert all(torch.equal(one[name], other[name]) for name in one)
    (tmp_path / "steps" / file_name("of it", ".safetensors")).write_bytes(b"")
    with pytest.warns(DamagedWarning, match=r"of-it-\w+\.safetensors is damaged"):
        mended = kept_fit(new_run(tmp_path), "of it", task, epochs=3, recorder=True)
    assert torch.equal(mended.model.weight, first.model.weight)
    assert kept_fit(new_run(tmp_path), "of it", task, epochs=9).losses == mended.losses


def test_throwing_away_leaves_files_of_others(tmp_path):
    new_run(tmp_path).step("one", lambda: 1)
    (tmp_path / "mine.txt").write_text("mine")
    (tmp_path / "plot.png").write_text("")
    throw_away(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["mine.txt"]
    new_run(tmp_path, Settings(samples=20))  # and another run may begin


# ---- supported removals


@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=20),
    st.floats(0, 0.5),
)
def test_supported_removals_are_those_before_the_first_fall(scores, drop):
    removed = [10 * i for i in range(len(scores))]
    found = supported_removals(removed, scores, drop=drop)
    fallen = [i for i in range(len(scores)) if scores[i] < scores[0] - drop - 1e-12]
    assert found.ended == bool(fallen)
    assert found.removals == (removed[fallen[0] - 1] if fallen else removed[-1])


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20), st.floats(0, 0.5), st.floats(0, 0.5))
def test_a_larger_drop_supports_no_fewer_removals(scores, one, other):
    removed = list(range(len(scores)))
    counts = [supported_removals(removed, scores, drop=drop).removals for drop in sorted((one, other))]
    assert counts == sorted(counts)


def test_a_score_that_is_no_number_has_fallen():
    assert supported_removals([0, 1, 2], [0.9, float("nan"), 0.9], drop=0.5) == Supported(0, 0.5, ended=True)


@pytest.mark.parametrize(
    ("removed", "scores", "drop", "words"),
    [
        ([0, 1], [0.9], 0.1, "one length"),
        ([1, 2], [0.9, 0.8], 0.1, "before any removal"),
        ([0], [0.9], -1, "drop must be 0 or more"),
    ],
)
def test_bad_curves_are_refused(removed, scores, drop, words):
    with pytest.raises(InputError, match=words):
        supported_removals(removed, scores, drop=drop)


class Counter(nn.Module):
    """A stand-in for a model: it knows how many samples it has forgotten."""

    def __init__(self, gone):
        super().__init__()
        self.gone = gone


def test_removals_are_measured_at_the_right_places():
    gone = []

    def forget(sample):
        gone.append(sample)
        return Counter(len(gone))

    columns = remove_one_by_one(
        Counter(0),
        forget,
        [7, 5, 3, 1, 9],
        every=2,
        measure=lambda model, ids: {"score": model.gone, "ids": len(ids)},
        of_sample=lambda model, sample: {"sample": sample, "when": model.gone},
    )
    assert gone == [7, 5, 3, 1, 9]
    assert columns["removed"] == [0, 2, 4, 5]
    assert columns["score"] == columns["ids"] == [0, 2, 4, 5]
    assert columns["sample"] == [7, 6, 2, 9]  # the first under the model as it was, then means of those since
    assert columns["when"] == [0, 1.5, 3.5, 5]


# ---- pages and the command line


def an_experiment(measure=None):
    return Experiment(
        name="example",
        title="an example",
        where="Table 9",
        data="nothing",
        published=Settings(),
        settings=Settings(samples=5),
        quick=Settings(samples=1),
        measure=measure or (lambda run: {"samples": run.step("count", lambda: run.settings.samples)}),
        draw=lambda measured, figure: figure.subplots().plot([0, measured["samples"]]),
        judge=lambda measured: [Claim("a | b", f"{measured['samples']} samples", "not confirmed", "because")],
    )


@pytest.fixture
def example(monkeypatch):
    monkeypatch.setattr(reproduce, "EXPERIMENTS", {"example": "example"})
    monkeypatch.setattr(reproduce, "find", lambda _: an_experiment())


def test_what_differs_from_the_paper_is_said():
    assert an_experiment().reductions(Settings(samples=5)) == ["samples: 10 at paper scale, 5 here"]
    assert an_experiment().reductions(Settings()) == []


@pytest.mark.usefixtures("example")
def test_results_are_written_and_gathered(tmp_path):
    result = reproduce.reproduce("example", out_dir=tmp_path, data_dir=tmp_path)
    assert json.loads((tmp_path / "example" / "result.json").read_text()) == result
    assert (tmp_path / "example" / "plot.png").read_bytes()[:4] == b"\x89PNG"
    text = (tmp_path / "example" / "README.md").read_text()
    for words in ("a \\| b", "5 samples", "not confirmed", "because", "excise reproduce example", "10 at paper scale"):
        assert words in text
    gathered = gather(tmp_path, ["example", "one that was not run"], "../results")
    assert "1 not confirmed" in gathered
    assert "say nothing about the paper" not in gathered
    assert "../results/example/plot.png" in gathered


@pytest.mark.slow
@pytest.mark.usefixtures("example")
def test_the_command_runs_and_goes_on(tmp_path):
    for expected in ("count: ", "count: kept"):
        done = CliRunner().invoke(cli, ["reproduce", "example", "--quick", "--out-dir", str(tmp_path)])
        assert done.exit_code == 0, done.output
        assert expected in done.output
        assert "samples: 10 at paper scale, 1 here" in done.output
        assert "verdicts say nothing about the paper" in done.output
        assert "say nothing about the paper" in (tmp_path / "example" / "README.md").read_text()
    refused = CliRunner().invoke(cli, ["reproduce", "example", "--out-dir", str(tmp_path)])
    assert "samples 1 there, 5 here" in str(refused.exception)
    fresh = CliRunner().invoke(cli, ["reproduce", "example", "--fresh", "--out-dir", str(tmp_path)])
    assert fresh.exit_code == 0


def test_ctrl_c_says_that_steps_are_kept(tmp_path, monkeypatch):
    def stopped(run):
        run.step("one", lambda: 1)
        raise KeyboardInterrupt

    monkeypatch.setattr(reproduce, "find", lambda _: an_experiment(stopped))
    done = CliRunner().invoke(cli, ["reproduce", "example", "--quick", "--out-dir", str(tmp_path)])
    assert done.exit_code == 130
    assert "complete steps are kept" in done.output
    assert (tmp_path / "example" / "steps" / file_name("one", ".json")).exists()
    assert not (tmp_path / "example" / "result.json").exists()


def test_one_that_fails_does_not_stop_the_others(tmp_path, monkeypatch):
    def failing(_):
        raise InputError("no data here.")

    experiments = {"bad": an_experiment(failing), "good": an_experiment()}
    monkeypatch.setattr(reproduce, "EXPERIMENTS", dict.fromkeys(experiments, ""))
    monkeypatch.setattr(reproduce, "find", lambda name: replace(experiments[name], name=name))
    done = CliRunner().invoke(cli, ["reproduce", "--all", "--quick", "--out-dir", str(tmp_path)])
    assert "bad: no data here." in done.output
    assert "not all experiments could be run: bad" in str(done.exception)
    assert (tmp_path / "good" / "result.json").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["bulls-eye"], "did you mean 'bullseye'"),
        (["xyzzy"], "there is no experiment 'xyzzy'; for all of them"),
        ([], "give one of"),
        (["bullseye", "--all"], "give one of"),
        (["bullseye", "--quick", "--paper-scale"], "give one of them"),
        (["--page", "page.txt"], "must end in .md"),
        (["--page", "page.md", "--out-dir", "nowhere"], "holds no results"),
    ],
)
def test_bad_commands_are_refused(arguments, words):
    assert words in str(CliRunner().invoke(cli, ["reproduce", *arguments]).exception)


def test_the_list_has_every_experiment():
    done = CliRunner().invoke(cli, ["reproduce", "--list"])
    assert [line.split()[0] for line in done.output.splitlines()] == list(reproduce.EXPERIMENTS)


def test_the_table_agrees_with_the_experiments():
    for name, listed in reproduce.EXPERIMENTS.items():
        experiment = reproduce.find(name)
        told = (listed.name, listed.where, listed.title, listed.data)
        assert told == (experiment.name, experiment.where, experiment.title, experiment.data)


def test_the_list_is_shown_without_loading_what_experiments_need():
    program = (
        "import sys; from click.testing import CliRunner; from excise.cli import cli;"
        "assert CliRunner().invoke(cli, ['reproduce', '--list']).exit_code == 0;"
        "sys.exit(', '.join({'torch', 'numpy', 'scipy', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == ""


def test_settings_of_every_experiment_say_what_they_reduce():
    for name in reproduce.EXPERIMENTS:
        experiment = reproduce.find(name)
        assert experiment.name == name
        assert type(experiment.settings) is type(experiment.published) is type(experiment.quick)
        assert experiment.reductions(experiment.quick), name


def test_the_results_page_is_what_the_results_say():
    kept = ROOT / "results"
    names = list(reproduce.EXPERIMENTS)
    assert (ROOT / "docs" / "results.md").read_text() == gather(kept, names, "../results")
    for name in names:
        result = json.loads((kept / name / "result.json").read_text())
        assert (kept / name / "README.md").read_text() == page(result)
        assert (kept / name / "plot.png").exists()
        assert result["claims"], name
        assert result["settings"] == json.loads(json.dumps(vars(reproduce.find(name).settings)))


LONG = (  # whose parts the files beside this one test
    "bullseye",
    "cifar-models",
    "faces",
    "full-hessian",
    "iterations",
    "kfac",
    "ledgar",
    "reid",
    "sensitivity",
    "spurious",
)
if os.environ.get("EXCISE_STUDIES") == "all":
    LONG = ()


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in reproduce.EXPERIMENTS if name not in LONG])
def test_an_experiment_runs_quickly_and_goes_on_when_stopped(name, tmp_path):
    folder = real("mnist").parent
    command = ["reproduce", name, "--quick", "--out-dir", str(tmp_path), "--data-dir", str(folder)]
    done = CliRunner().invoke(cli, command)
    assert done.exit_code == 0, done.output + str(done.exception)
    result = json.loads((tmp_path / name / "result.json").read_text())
    assert result["command"] == f"excise reproduce {name} --quick"
    for claim in result["claims"]:
        assert f"  {claim['verdict']}: {claim['paper']}\n    measured: {claim['measured']}\n" in done.output
    assert result["claims"]
    assert (tmp_path / name / "README.md").read_text() == page(result)
    assert (tmp_path / name / "plot.png").stat().st_size > 5_000
    again = CliRunner().invoke(cli, command)  # as after a stop: nothing is computed twice, and the outcome is the same
    assert again.exit_code == 0, again.output + str(again.exception)
    assert not re.findall(r": \d+\.\d s$", again.output, flags=re.MULTILINE)
    assert json.loads((tmp_path / name / "result.json").read_text()) == result
