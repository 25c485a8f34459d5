"""What ``excise forget`` and ``excise audit`` let the page and the record say."""

import hashlib
import json
from datetime import datetime, timedelta

import pytest

from excise.errors import ExciseError
from excise.evidence.sample_hashes import sample_hash

pytestmark = pytest.mark.filterwarnings("ignore::excise.unlearning.convergence.NotConvergedWarning")
FORGET = ("forget", "--task", "forget_factory:tested", "--ids", "3,5", "--out", "out.safetensors")
AUDIT = ("audit", "--task", "forget_factory:tested", "--unlearned", "out.safetensors")


def test_hashes_under_the_users_key(run, tmp_path, make_task):
    done = run(*FORGET, "--report", "page.html", "--hash-key", "key")
    assert done.exit_code == 0, done.output
    key = bytes.fromhex((tmp_path / "key").read_text())
    digest = sample_hash(make_task("tested"), 3, key)
    page = (tmp_path / "page.html").read_text()
    assert digest in page
    assert key.hex() not in page
    found = json.loads(run(*AUDIT, "--hash-key", "key", "--json").stdout)
    assert found["sample_hashes"][0] == digest


def sha256sum(file):
    return hashlib.sha256(file.read_bytes()).hexdigest()


def test_the_record_says_when_by_whom_and_from_which_files(run, tmp_path):
    assert run(*FORGET).exit_code == 0
    before = sha256sum(tmp_path / "out.safetensors")
    words = ("--ids", "8", "--model", "out.safetensors", "--out", "out.safetensors", "--report", "record.json")
    words += ("--method", "step")
    done = run("forget", "--task", "forget_factory:tested", *words, "--reference", "GDPR-17", "--operator", "Ann")
    assert done.exit_code == 0, done.output
    record = json.loads((tmp_path / "record.json").read_text())
    assert record["reference"] == "GDPR-17"
    assert record["operator"] == "Ann"
    assert record["sha256"] == {"before": before, "after": sha256sum(tmp_path / "out.safetensors")}
    assert datetime.fromisoformat(record["date"]).utcoffset() == timedelta(0)
    assert record["ids"] == [8]
    assert record["earlier"] == [3, 5]
    assert record["settings"]["method"]["name"] == "step"
    assert len(record["fingerprint"]["ordered"]) == 64


@pytest.mark.slow
def test_the_page_says_the_same(run, tmp_path):
    assert run(*FORGET).exit_code == 0
    before = sha256sum(tmp_path / "out.safetensors")
    words = ("--ids", "8", "--model", "out.safetensors", "--out", "new.safetensors", "--report", "page.html")
    words += ("--method", "step")
    done = run("forget", "--task", "forget_factory:tested", *words, "--reference", "GDPR-17", "--operator", "<Ann>")
    assert done.exit_code == 0, done.output
    page = (tmp_path / "page.html").read_text()
    for word in ("GDPR-17", "&lt;Ann&gt;", before, sha256sum(tmp_path / "new.safetensors"), "2 samples, by earlier"):
        assert word in page
    assert "stay forgotten" in " ".join(page.split())
    audited = ("audit", "--task", "forget_factory:tested", "--original", "out.safetensors")
    done = run(*audited, "--unlearned", "new.safetensors", "--reference", "R", "--json")
    found = json.loads(done.stdout)
    assert found["sha256"] == {"before": before, "after": sha256sum(tmp_path / "new.safetensors")}
    assert found["reference"] == "R"
    assert found["settings"]["method"]["name"] == "step"


def test_a_wrong_key_file_is_said_before_the_work(run, tmp_path):
    (tmp_path / "key").write_text("no key")
    done = run(*FORGET, "--report", "page.html", "--hash-key", "key")
    assert isinstance(done.exception, ExciseError)
    assert not (tmp_path / "out.safetensors").exists()


def test_customers_are_named_by_their_keys(run, tmp_path):
    words = ("--keys", "c3,c7", "--out", "out.safetensors", "--report", "page.html")
    assert run("forget", "--task", "forget_factory:named", *words).exit_code == 0
    page = " ".join((tmp_path / "page.html").read_text().split())
    assert "All samples of 2 keys" in page
    assert "all 8 training samples of c3, c7:" in page
    assert "Single samples" not in page


@pytest.mark.slow
def test_the_samples_are_looked_for_in_further_sets(run, tmp_path):
    done = run(*FORGET, "--report", "page.html", "--also", "forget_factory:validation")
    assert done.exit_code == 0, done.output
    page = " ".join((tmp_path / "page.html").read_text().split())
    assert "<h3>Also in validation</h3>" in page
    assert "1 sample of the request is in it (position 7)." in page
    found = json.loads(run(*AUDIT, "--also", "forget_factory:validation", "--json").stdout)
    assert found["elsewhere"] == {"validation": [7]}
    told = " ".join(run(*AUDIT, "--also", "forget_factory:validation").stdout.split())
    assert "! Also in validation: 1 sample of the request is in it (position 7)." in told


def test_a_customers_rows_are_found_in_further_sets_by_their_keys(run):
    task = ("--task", "forget_factory:named")
    assert run("forget", *task, "--keys", "c3", "--out", "out.safetensors").exit_code == 0
    audited = run("audit", *task, "--unlearned", "out.safetensors", "--also", "forget_factory:validation_with_keys")
    assert "(position 2)" in " ".join(audited.stdout.split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--report", "page.html", "--also", "forget_factory:nothing"), r"also\['nothing'\] must be a data set"),
        (("--report", "page.html", "--also", "forget_factory:unknown"), "further set's module .* has no function"),
        (("--report", "page.html", "--also", "validation"), "further set must be given as module:factory"),
        (
            ("--report", "page.html", *("--also", "forget_factory:validation") * 2),
            "another set of the name 'validation'",
        ),
        (("--report", "r.json", "--also", "forget_factory:validation"), "--also are for the page"),
    ],
)
def test_a_further_set_that_is_none_is_said_before_the_work(run, tmp_path, words, message):
    done = run(*FORGET, *words)
    with pytest.raises(ExciseError, match=message):
        raise done.exception
    assert not (tmp_path / "out.safetensors").exists()
