"""What is kept of a model, and who may make it."""

import errno
import multiprocessing

import numpy as np
import pytest

from excise._support import locks
from excise._support.claims import claim
from excise.evidence.population.pieces import GROUPS, Piece, made_once, read, write
from excise.training.model_cache import DamagedWarning

SAMPLES = {"forget": 2, "retain": 4, "test": 3}


def piece(shift=0.0):
    margins = {name: np.arange(count) + shift for name, count in SAMPLES.items()}
    return Piece(margins, {"forget": 0.5, "retain": 1.0, "test": 0.75}, 2.5, 0.25, 1.0)


def same(one, other):
    return all(np.array_equal(one.margins[name], other.margins[name]) for name in GROUPS) and (
        (one.accuracies, one.seconds, one.preparation, one.refused)
        == (other.accuracies, other.seconds, other.preparation, other.refused)
    )


def test_a_piece_is_read_as_it_was_written(tmp_path):
    write(tmp_path / "a.npz", piece(0.1))
    assert same(read(tmp_path / "a.npz", SAMPLES), piece(0.1))
    assert not same(piece(0.1), piece(0.2))
    assert [one.name for one in tmp_path.iterdir()] == ["a.npz"]


def test_a_piece_that_is_not_there_is_none(tmp_path):
    assert read(tmp_path / "a.npz", SAMPLES) is None


def cut(file):
    file.write_bytes(file.read_bytes()[:-40])


def emptied(file):
    file.write_bytes(b"")


def without_figures(file):
    np.savez(file, margins_forget=np.zeros(2))


def pickled(file):
    np.savez(file, figures=np.array([{}], dtype=object))


def not_finite(file):
    broken = piece()
    broken.margins["test"][1] = np.nan
    write(file, broken)


@pytest.mark.parametrize("damage", [cut, emptied, without_figures, pickled, not_finite])
def test_a_damaged_piece_is_named_and_made_anew(damage, tmp_path):
    file = tmp_path / "a.npz"
    write(file, piece())
    damage(file)
    with pytest.warns(DamagedWarning, match=r"a\.npz: is damaged .* made anew"):
        found = made_once(file, SAMPLES, lambda: piece(7))
    assert same(found, piece(7))
    assert same(read(file, SAMPLES), piece(7))


def test_a_piece_of_other_samples_is_made_anew(tmp_path):
    write(tmp_path / "a.npz", piece())
    with pytest.warns(DamagedWarning, match="its margins of test samples are not 9 finite numbers"):
        assert read(tmp_path / "a.npz", SAMPLES | {"test": 9}) is None


def test_a_piece_is_made_once(tmp_path):
    made = []

    def make():
        made.append(1)
        return piece()

    for _ in range(2):
        assert same(made_once(tmp_path / "new" / "a.npz", SAMPLES, make), piece())
    assert made == [1]


def test_what_another_is_making_is_not_made(tmp_path):
    with claim(tmp_path / "a.npz"):
        assert made_once(tmp_path / "a.npz", SAMPLES, piece) is None
    assert same(made_once(tmp_path / "a.npz", SAMPLES, piece), piece())


def test_a_claim_is_given_back(tmp_path):
    file = tmp_path / "a.npz"
    with claim(file) as first, claim(file) as second:
        assert (first, second) == (True, False)
    with pytest.raises(KeyError), claim(file):
        raise KeyError
    with claim(file) as again, claim(tmp_path / "b.npz") as another:
        assert again
        assert another
    assert not list(tmp_path.iterdir())


def test_a_lock_that_was_taken_away_meanwhile_is_none(tmp_path, monkeypatch):
    """Whoever opened it before must not hold a file without a name while another makes a new one."""
    lock, plain = tmp_path / ".a.npz.lock", locks.fcntl.flock

    def flock(descriptor, how):
        lock.unlink()
        plain(descriptor, how)

    monkeypatch.setattr(locks.fcntl, "flock", flock)
    with claim(tmp_path / "a.npz") as mine:
        assert not mine


def test_where_the_system_has_no_locks_a_name_is_one(tmp_path, monkeypatch):
    monkeypatch.setattr(locks, "fcntl", None)
    with claim(tmp_path / "a.npz") as first, claim(tmp_path / "a.npz") as second:
        assert (first, second) == (True, False)
    assert not list(tmp_path.iterdir())


def test_a_folder_without_locks_lets_everyone_work(tmp_path, monkeypatch):
    def flock(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(locks.fcntl, "flock", flock)
    with claim(tmp_path / "a.npz") as first, claim(tmp_path / "a.npz") as second:
        assert first
        assert second
    assert not list(tmp_path.iterdir())


def _claim(file, tell, until):
    with claim(file) as mine:
        tell.put(mine)
        until.wait(60)


@pytest.mark.slow
def test_another_process_does_not_get_it_until_the_first_has_ended(tmp_path):
    context = multiprocessing.get_context("fork")  # which need not import everything again
    tell, until = context.Queue(), context.Event()
    other = context.Process(target=_claim, args=(tmp_path / "a.npz", tell, until))
    other.start()
    assert tell.get(timeout=60)
    with claim(tmp_path / "a.npz") as mine:
        assert not mine
    other.kill()  # without a chance to tidy up
    other.join()
    with claim(tmp_path / "a.npz") as mine:
        assert mine
