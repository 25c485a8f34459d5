"""Deletions last: what one command forgets, the next one does not learn again."""

import json
import pickle
from dataclasses import replace

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from excise import Drift, Effort, Forgotten, OneSlice, Step, Unlearner, audit
from excise.errors import ExciseError
from excise.task.objective import losses_on
from excise.task.weights import load_weights
from excise.unlearning.drift import NotAWholeClassWarning

pytestmark = pytest.mark.filterwarnings("ignore::excise.unlearning.convergence.NotConvergedWarning")
TRAINED = ("forget", "--task", "forget_factory:trained")
WRONG = list(range(10))


def command(run, *words):
    done = run(*words)
    assert done.exit_code == 0, (done.output, done.exception)
    return done.output


def refused(run, tmp_path, *words):
    before = {path.name for path in tmp_path.iterdir()}
    done = run(*words)
    assert isinstance(done.exception, ExciseError), done.output
    assert {path.name for path in tmp_path.iterdir()} == before  # nothing written
    return str(done.exception)


def mean_loss(task, model, ids):
    return float(losses_on(task, model.eval(), ids).mean())


@pytest.mark.slow
@pytest.mark.parametrize("method", ["step", "drift", "thorough"])
def test_later_commands_do_not_bring_back_what_the_first_forgot(run, tmp_path, make_task, method):
    """Once, every command began anew: ten samples' loss fell from 3.59 to 1.59 over five requests of others."""
    task = make_task("trained")
    session = Unlearner(task, method)
    session.forget(WRONG)
    command(run, *TRAINED, "--method", method, "--ids", ",".join(map(str, WRONG)), "--out", "w0.safetensors")
    for number, other in enumerate((20, 33, 47)):
        inside = ("--model", f"w{number}.safetensors", "--out", f"w{number + 1}.safetensors")
        said = command(run, *TRAINED, "--method", method, "--ids", other, *inside)
        assert f"forgotten before: {10 + number} samples" in said
        session.forget([other])
    load_weights(task.model, tmp_path / "w3.safetensors")
    ours, theirs = mean_loss(task, task.model, WRONG), mean_loss(task, session.model, WRONG)
    assert ours == pytest.approx(theirs, rel=0.05)


@pytest.mark.slow
def test_without_a_record_the_user_says_what_is_gone(run, tmp_path, make_task):
    command(run, *TRAINED, "--method", "drift", "--ids", "0,1,2", "--out", "w.pt")
    (tmp_path / "gone.txt").write_text("0\n1\n2\n")
    more = ("--method", "drift", "--model", "w.pt", "--ids", "40", "--out", "v.safetensors")
    assert "forgotten before: 3 samples" in command(run, *TRAINED, *more, "--forgotten", "gone.txt")
    assert Forgotten.load(tmp_path / "v.safetensors", make_task("trained")).forgotten == (0, 1, 2, 40)
    said = refused(run, tmp_path, *TRAINED, "--model", "w.pt", "--ids", "1", "--out", "x.pt", "--forgotten", "gone.txt")
    assert "ids has 1, which is forgotten already" in said


@pytest.mark.slow
def test_the_weights_say_by_which_method_and_from_which_data(run, tmp_path):
    command(run, *TRAINED, "--method", "drift", "--set", "epochs=2", "--ids", "0,1", "--out", "w.safetensors")
    with safe_open(tmp_path / "w.safetensors", framework="pt") as opened:
        record = json.loads(opened.metadata()["excise"])
    assert record["forgotten"] == [0, 1]
    assert record["settings"]["method"] == {**record["settings"]["method"], "name": "drift", "epochs": 2}
    assert record["fingerprint"]["samples"] == 80


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("reordered", "the same samples in another order"),
        ("shortened", "of 80 samples, and train_set has 79"),
        ("exchanged", "of another training set"),
        ("wider", "is it the weights of this model?"),
    ],
)
def test_weights_of_another_training_set_or_architecture_are_refused(run, tmp_path, task, message):
    command(run, "forget", "--task", "forget_factory:tested", "--ids", "3", "--out", "w.safetensors")
    words = ("--task", f"forget_factory:{task}", "--ids", "4", "--model", "w.safetensors", "--out", "v.safetensors")
    assert message in refused(run, tmp_path, "forget", *words)
    audited = ("audit", "--task", f"forget_factory:{task}", "--unlearned", "w.safetensors")
    assert message in refused(run, tmp_path, *audited)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("record", "message"),
    [
        ("no json", "record of what is forgotten is damaged"),
        ("[1]", "record of what is forgotten is damaged"),
        ("{}", "it lacks"),
        ({"forgotten": ["a"]}, "forgotten must be whole numbers"),
        ({"forgotten": 3}, "damaged"),
        ({"fingerprint": {"samples": 80}}, "damaged fingerprint"),
        ({"forgotten": [3, 500]}, "forgotten has 500, and the training set had 80 samples"),
        ({"forgotten": []}, "all of them among forgotten"),
        ({"forgotten": [4]}, "all of them among forgotten"),
        ({"ids": [3, 3]}, "each once"),
        ({"seconds": 10**400}, "damaged"),
        ({"shortened": [[None], {}]}, "shortened must be a sentence"),
        ({"keys": [{}]}, "keys must hold words"),
        ({"certificate": {"kind": 1}}, "damaged certificate"),
    ],
)
def test_a_damaged_record_is_refused(run, tmp_path, record, message):
    words = ("forget", "--task", "forget_factory:tested", "--ids", "3")
    command(run, *words, "--out", "w.safetensors")
    with safe_open(tmp_path / "w.safetensors", framework="pt") as opened:
        good = json.loads(opened.metadata()["excise"])
    text = record if isinstance(record, str) else json.dumps({**good, **record})
    save_file(load_file(tmp_path / "w.safetensors"), tmp_path / "w.safetensors", {"excise": text})
    more = ("--model", "w.safetensors", "--out", "v.safetensors")
    assert message in refused(run, tmp_path, "forget", "--task", "forget_factory:tested", "--ids", "4", *more)


def test_customers_by_their_keys(run, tmp_path, make_task):
    words = ("forget", "--task", "forget_factory:named", "--out", "w.safetensors")
    said = command(run, *words, "--keys", "c3,c7", "--report", "record.json")
    assert "forgot 2 keys (8 samples)" in said
    record = json.loads((tmp_path / "record.json").read_text())
    assert record["keys"] == ["c3", "c7"]
    assert record["ids"] == [12, 13, 14, 15, 28, 29, 30, 31]
    assert Forgotten.load(tmp_path / "w.safetensors", make_task("named")).keys == ("c3", "c7")
    assert "'c33', which no sample" in refused(run, tmp_path, *words, "--keys", "c33")
    assert "by one of" in refused(run, tmp_path, *words, "--keys", "c3", "--ids", "4")
    unnamed = ("forget", "--task", "forget_factory:tested", "--out", "w.safetensors")
    assert "pass keys= to Task" in refused(run, tmp_path, *unnamed, "--keys", "c3")


@pytest.mark.slow
@pytest.mark.parametrize("by_file", [True, False])
def test_an_audit_reads_the_record(run, tmp_path, by_file):
    """So that the report of the two-command way says by which method, with scores, certificate and seconds."""
    out = "w.pt" if by_file else "w.safetensors"
    words = ("--task", "forget_factory:tested")
    command(run, "forget", *words, "--ids", "3,5", "--out", out, "--report", "r.json", "--method", "step")
    record = ("--record", "r.json") if by_file else ()
    command(run, "audit", *words, "--unlearned", out, *record, "--report", "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "PerLayer" in page
    assert "observed_samples" in page.replace(" ", "_")
    found = json.loads(command(run, "audit", *words, "--unlearned", out, *record, "--json"))
    assert found["ids"] == [3, 5]
    assert found["change"]["certificate"]["kind"] == "heuristic"
    assert found["change"]["seconds"] > 0
    assert found["change"]["scores"]


def test_an_audit_without_any_record_needs_to_be_told(run, tmp_path):
    words = ("--task", "forget_factory:tested")
    command(run, "forget", *words, "--ids", "3,5", "--out", "w.pt")
    assert "name that by --forget" in refused(run, tmp_path, "audit", *words, "--unlearned", "w.pt")
    for text, message in (("no", "can't be read as a record"), ("{}", "it lacks"), ("[]", "is no record")):
        (tmp_path / "r.json").write_text(text)
        said = refused(run, tmp_path, "audit", *words, "--unlearned", "w.pt", "--record", "r.json")
        assert message in said
    (tmp_path / "r.json").unlink()
    assert "r.json: no such file" in refused(
        run, tmp_path, "audit", *words, "--unlearned", "w.pt", "--record", "r.json"
    )


def test_the_record_of_another_request_is_refused(run, tmp_path):
    words = ("--task", "forget_factory:tested")
    command(run, "forget", *words, "--ids", "3,5", "--out", "w.safetensors")
    command(run, "forget", *words, "--ids", "7", "--out", "v.safetensors", "--report", "r.json")
    said = refused(run, tmp_path, "audit", *words, "--unlearned", "w.safetensors", "--record", "r.json")
    assert "r.json is the record of another request than the one in w.safetensors" in said


def test_keys_that_moved_are_noticed(make_task, tmp_path):
    """The samples are the same and in their order, but their keys are not."""
    task = make_task("named")
    Unlearner(task).forget(keys=["c1"]).save(tmp_path / "w.safetensors")
    with pytest.raises(ExciseError, match="had other keys, or the same ones in another order"):
        Unlearner.load(tmp_path / "w.safetensors", replace(task, keys=task.keys[::-1]))
    assert Unlearner.load(tmp_path / "w.safetensors", replace(task, keys=None)).forgotten == (4, 5, 6, 7)


def test_a_key_that_is_gone_is_named_as_the_user_knows_it(make_task):
    unlearner = Unlearner(make_task("named"))
    unlearner.forget(keys=["c1"])
    with pytest.raises(ExciseError, match="keys has 'c1', which is forgotten already"):
        unlearner.forget(keys=["c1"])
    with pytest.raises(ExciseError, match=r"not the text 'c2'; pass \['c2'\]"):
        unlearner.forget(keys="c2")
    assert unlearner.forget("keys:c2,c3").ids == (8, 9, 10, 11, 12, 13, 14, 15)


@pytest.mark.slow
def test_an_audit_of_the_second_request_tells_its_changes_alone(make_task):
    task = make_task("trained")
    session = Unlearner(task, Step(OneSlice()))
    session.forget([1])
    second = session.forget([2])
    found = audit(task, second)
    assert found.change.changed == second.parameters_changed


def test_denying_a_part_of_a_class_is_warned_of(make_task):
    with pytest.warns(NotAWholeClassWarning, match="retained samples have the same classes"):
        Unlearner(make_task("trained"), "class").forget(keys=["c1"])


def test_an_outcome_is_saved_loaded_and_pickled(make_task, tmp_path):
    task = make_task("named")
    done = Unlearner(task, Drift(epochs=1)).forget(keys=["c1"])
    done.save(tmp_path / "w.safetensors")
    done.save(tmp_path / "r.json")
    again = Forgotten.load(tmp_path / "w.safetensors", task)
    pickled = pickle.loads(pickle.dumps(done))
    for other in (again, pickled):
        assert other.as_dict() == done.as_dict()
        assert all(torch.equal(a, b) for a, b in zip(other.model.parameters(), done.model.parameters(), strict=True))
    assert json.loads((tmp_path / "r.json").read_text()) == done.as_dict()
    with pytest.raises(ExciseError, match=r"\.safetensors, with its weights, or \.json"):
        done.save(tmp_path / "w.pt")
    further = Unlearner.load(tmp_path / "w.safetensors", task, "drift")
    assert further.forgotten == (4, 5, 6, 7)
    assert further.forget([9]).forgotten == (4, 5, 6, 7, 9)


def test_an_unlearner_goes_on_from_its_state(make_task):
    task = make_task("named")
    first = Unlearner(task, "drift")
    first.forget([1, 2])
    state = first.state_dict()
    second = Unlearner(task, "drift")
    second.load_state_dict(state)
    assert second.forgotten == (1, 2)
    assert all(torch.equal(a, b) for a, b in zip(first.model.parameters(), second.model.parameters(), strict=True))
    assert second.forget([3]).forgotten == (1, 2, 3)
    for wrong, message in (
        ({**state, "more": 1}, "no state_dict"),
        ({**state, "model": {}}, "another architecture"),
        ({**state, "forgotten": [99]}, "from 0 to 79"),
        ({**state, "fingerprint": None}, "damaged fingerprint"),
        ({**state, "budget": {}}, "privacy budget"),
    ):
        with pytest.raises(ExciseError, match=message):
            second.load_state_dict(wrong)
    with pytest.raises(ExciseError, match="another order"):
        Unlearner(make_task("reordered")).load_state_dict({**Unlearner(make_task("tested")).state_dict()})


@pytest.mark.parametrize("forgotten", [3, None, "3", {"3": 1}])
def test_a_state_whose_list_is_none_is_refused(make_task, forgotten):
    unlearner = Unlearner(make_task("named"), "drift")
    with pytest.raises(ExciseError, match="state is no state_dict"):
        unlearner.load_state_dict({**unlearner.state_dict(), "forgotten": forgotten})
    assert unlearner.forgotten == ()


def test_keys_that_are_tuples_are_tuples_again(make_task, tmp_path):
    task = replace(make_task("named"), keys=[("shop", place // 4) for place in range(80)])
    done = Unlearner(task, Drift(epochs=1)).forget(keys=[("shop", 1)])
    done.save(tmp_path / "w.safetensors")
    again = Forgotten.load(tmp_path / "w.safetensors", task)
    assert again.keys == done.keys == (("shop", 1),)
    validation = (task.test_set, [("shop", place) for place in range(len(task.test_set))])
    found = audit(task, task.model, again, again.ids, also={"validation": validation}, effort=Effort(relearn_steps=1))
    assert found.elsewhere == {"validation": (1,)}
