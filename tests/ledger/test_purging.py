"""What was computed with deleted samples is found, listed and gone by its date."""

import shutil

import pytest
import torch

from excise.errors import InputError
from excise.ledger.policy import Policy
from excise.ledger.processing import Worker
from excise.ledger.purging import leftovers_of, purge_leftovers, register, set_retention
from excise.ledger.verification import verify_ledger

STEP = Policy(method="step", guard=None, points=None)


@pytest.fixture
def worked(ledger, task, tmp_path):
    """Two deletions, and a file that was made after the first one."""
    for number in range(2):
        ledger.submit(f"person-{number}", subject_request_id=f"r-{number}x")
        Worker(ledger, task, STEP).run()
        if number == 0:
            (tmp_path / "optimizer.pt").write_bytes(b"momentum of all samples but the first person's")
            register(ledger, tmp_path / "optimizer.pt", "optimizer state")
    return ledger


def test_old_versions_and_registered_files_are_left_over(worked, tmp_path):
    found = leftovers_of(worked)
    assert [one.kind for one in found] == ["model version", "model version", "optimizer state"]
    versions = worked.lineage()
    assert {one.path for one in found} == {
        *(str(worked.folder / "models" / f"{one.version}.safetensors") for one in versions[:2]),
        str(tmp_path / "optimizer.pt"),
    }
    assert not any(one.is_late for one in found)
    assert verify_ledger(worked).is_whole


def test_what_is_past_its_date_fails_the_verification_until_it_is_purged(worked, clock, tmp_path):
    clock.pass_days(31)
    problems = [str(one) for one in verify_ledger(worked).problems]
    assert len(problems) == 3
    assert "optimizer state optimizer.pt: was to be gone by 2026-03-31" in "\n".join(problems)
    assert len(purge_leftovers(worked)) == 3
    assert verify_ledger(worked).is_whole
    assert not (tmp_path / "optimizer.pt").exists()
    held = list((worked.folder / "models").glob("*.safetensors"))
    assert [file.stem for file in held] == [worked.lineage()[-1].version]
    assert leftovers_of(worked) == []
    assert purge_leftovers(worked) == []


def test_nothing_is_purged_before_its_date_unless_it_is_asked_for(worked):
    assert purge_leftovers(worked) == []
    assert len(purge_leftovers(worked, at_once=True)) == 3


def test_the_ledger_says_for_how_long_leftovers_may_be_kept(worked):
    set_retention(worked, 90)
    assert {one.purge_by[:10] for one in leftovers_of(worked)} == {"2026-05-30"}
    set_retention(worked, 0)
    assert all(one.is_late for one in leftovers_of(worked))
    with pytest.raises(InputError, match="days"):
        set_retention(worked, -1)


def test_an_interrupted_purge_is_finished_by_the_next(worked, clock, monkeypatch):
    clock.pass_days(31)
    with monkeypatch.context() as patched:
        patched.setattr("excise.ledger.purging.purge", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            purge_leftovers(worked)
    assert "was purged, but the file is there" in str(verify_ledger(worked).problems[0])
    purge_leftovers(worked)
    assert verify_ledger(worked).is_whole


def test_copies_are_found_and_not_removed(worked, tmp_path):
    first = worked.lineage()[0]
    (tmp_path / "backup").mkdir()
    copy = tmp_path / "backup" / "old.safetensors"
    shutil.copy(worked.folder / "models" / f"{first.version}.safetensors", copy)
    found = [one for one in leftovers_of(worked, folders=[tmp_path / "backup"]) if one.event is None]
    assert [one.path for one in found] == [str(copy)]
    purge_leftovers(worked, at_once=True)
    assert copy.exists()


def test_weights_in_another_format_are_recognised(worked, task, tmp_path):
    (tmp_path / "backup").mkdir()
    torch.save(task.model.state_dict(), tmp_path / "backup" / "checkpoint.pt")
    found = [one for one in leftovers_of(worked, folders=[tmp_path / "backup"], task=task) if one.event is None]
    assert [one.path for one in found] == [str(tmp_path / "backup" / "checkpoint.pt")]


def test_a_file_that_was_changed_since_is_not_removed_and_holds_up_no_other(worked, clock, tmp_path):
    clock.pass_days(31)
    (tmp_path / "optimizer.pt").write_bytes(b"something else that someone needs")
    with pytest.raises(InputError, match=r"optimizer.pt: not the file that was registered"):
        purge_leftovers(worked)
    assert (tmp_path / "optimizer.pt").exists()
    assert len(list((worked.folder / "models").glob("*.safetensors"))) == 1
    assert [str(one) for one in verify_ledger(worked).problems] == [
        "optimizer state optimizer.pt: was to be gone by 2026-03-31; purge it."  # it is not recorded as purged
    ]
    register(worked, tmp_path / "optimizer.pt", "optimizer state")
    assert verify_ledger(worked).is_whole


def test_a_file_registered_twice_is_as_old_as_it_was_at_first(worked, clock, tmp_path):
    register(worked, tmp_path / "optimizer.pt", "optimizer state")
    clock.pass_days(31)
    assert str(tmp_path / "optimizer.pt") in [one.path for one in purge_leftovers(worked)]
    assert verify_ledger(worked).is_whole


def test_the_name_of_a_purged_file_can_be_used_again(worked, clock, tmp_path):
    clock.pass_days(31)
    purge_leftovers(worked)
    (tmp_path / "optimizer.pt").write_bytes(b"momentum of the samples that are left")
    assert verify_ledger(worked).is_whole
    assert purge_leftovers(worked) == []
    assert (tmp_path / "optimizer.pt").exists()


def test_what_is_no_file_or_no_kind_is_refused(worked, tmp_path):
    with pytest.raises(InputError, match="can't be read"):
        register(worked, tmp_path / "nowhere", "report")
    with pytest.raises(InputError, match="kind"):
        register(worked, tmp_path / "optimizer.pt", "poem")
