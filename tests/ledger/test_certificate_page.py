"""The certificate as a page: what the file says and no more, safe to open, without scripts or network."""

import hashlib
import json
import re
from html.parser import HTMLParser

import pytest
from deletion_certificates import certificate_body

from excise.errors import InputError
from excise.evidence.outcomes import LEVELS
from excise.ledger.certificate_page import certificate_html, write_certificate_page
from excise.ledger.deletion_certificate import signed

SECTIONS = ["request", "outcome", "done", "measured", "guarantee", "not-proven", "verify", "record"]
EVIL = "<script>alert('x')</script>\"'&"


class Page(HTMLParser):
    """Fails on tags that don't match; keeps elements and text."""

    def __init__(self, text):
        super().__init__()
        self.open, self.elements, self.words = [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture
def page(keys):
    """The page of a certificate, after a change of its body."""

    def make(change=dict, **options):
        body = certificate_body(**options)
        change(body)
        return certificate_html(signed(body, keys))

    return make


def leaves_of(value):
    if isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from leaves_of(one)
    else:
        yield value


def test_all_sections_are_there_in_one_whole_page(page):
    found = Page(page())
    assert [one["id"] for one in found.all("section")] == SECTIONS
    for tag in ("html", "title", "h1", "main"):
        assert len(found.all(tag)) == 1
    assert all(one["scope"] in ("col", "row", "rowgroup") for one in found.all("th"))
    assert not re.search(r"\b(nan|inf|None|True|False)\b", found.text)


def test_all_words_and_hashes_of_the_certificate_are_on_the_page(page, certificate):
    text = Page(page()).text
    document = json.loads(certificate)
    document["body"]["samples"].pop("absence")  # the proof is for machines
    for part in ("received_time", "due_date", "completed_time"):
        document["body"]["request"].pop(part)
    words = [
        one for one in leaves_of(document) if isinstance(one, str) and one not in ("heuristic", "excise-certificate/1")
    ]
    assert len(words) > 30
    for word in words:
        assert word.lower() in text.lower()


def test_figures_are_those_of_the_certificate(page):
    text = Page(page()).text
    for words in (
        "Received (UTC) 2025-03-04 05:06",
        "Completed (UTC) 2025-03-05 06:07 29 days before it was due",
        "Samples deleted 3",
        "version 4 became version 5",
        "Samples retained 197",
        "Weights changed 1,290",
        "Deleted samples What the model says of the samples that it was asked to forget. 100.0 % 66.7 %",
        "0.021 0.187",
        "Whole budget, δ 1.0 × 10⁻⁵",
        "Further requests that fit 11",
        "compared with 3 models retrained",
        "attack by loss, AUC 0.512",
    ):
        assert words in text


@pytest.mark.parametrize(
    ("due", "words"),
    [
        ("2025-03-01", "4 days after it was due"),
        ("2025-03-05", "on the due date"),
        ("2025-03-06T23:00:00-05:00", "2 days before it was due"),
        ("2025-03-06", "1 day before it was due"),
    ],
)
def test_whether_it_was_in_time_is_said(page, due, words):
    found = Page(page(lambda body: body["request"].update(due_date=due)))
    assert words in found.text
    assert ({"class": "bad"} in found.all("b")) == ("after" in words)


@pytest.mark.parametrize("outcome", [*LEVELS, "a verdict of tomorrow"])
def test_the_banner_has_the_level_of_the_verdict(page, outcome):
    found = Page(page(lambda body: body["audit"].update(verdict=outcome)))
    assert {"class": f"banner {LEVELS.get(outcome, 'note')}"} in found.all("div")
    assert outcome.capitalize() in found.text
    assert (f'What "{outcome}" means.' in found.text) == (outcome in LEVELS and outcome != "forgotten")


def test_without_an_audit_there_is_no_verdict(page):
    found = Page(page(audited=False))
    assert "Not audited" in found.text
    assert "no verdict about the model" in found.text
    assert "forgotten the 3 samples" not in found.text


def test_what_is_not_known_is_left_out(page):
    def unknown(body):
        body["measured"] = dict.fromkeys(body["measured"])
        body["guarantee"] = body["budget"] = None
        body["method"].update(parameters_changed=None, step_share=None, seconds=None, said="", slices=[], settings={})
        body["request"]["identities"] = []

    found = Page(page(unknown))
    assert [one["id"] for one in found.all("section")] == [one for one in SECTIONS if one != "measured"]
    assert "Nothing is guaranteed by mathematics" in found.text
    assert not re.search(r"None|Privacy budget|Time it took|Settings", found.text)


def test_other_requests_of_the_batch_are_counted(page):
    assert "2 other requests" in Page(page(lambda body: body["request"].update(requests_in_batch=3))).text
    assert "other request" not in Page(page()).text


@pytest.mark.parametrize(("deleted", "unfolded"), [(5, True), (6, False)])
def test_many_samples_are_folded(page, deleted, unfolded):
    found = Page(page(deleted=deleted))
    assert ({"open": None} in found.all("details")) == unfolded
    assert f"Sample {deleted}" in found.text


def test_nothing_is_loaded_and_nothing_runs(page):
    text = page()
    found = Page(text)
    assert not re.search("https?:|@import|url\\(|//", text)
    assert not {tag for tag, _ in found.elements} & {"script", "link", "iframe", "object", "a", "img", "form"}
    assert not [name for _, attributes in found.elements for name in attributes if name.startswith("on")]
    (policy,) = [one["content"] for one in found.all("meta") if one.get("http-equiv")]
    assert set(policy.split("; ")) == {
        "default-src 'none'", "style-src 'unsafe-inline'", "base-uri 'none'", "form-action 'none'",
    }  # fmt: skip


def test_words_from_outside_are_escaped(page):
    def evil(body):
        body["ledger"]["id"] = body["request"]["subject_request_id"] = EVIL
        body["request"]["identities"][0]["identity_type"] = EVIL
        body["model"]["after"]["version"] = EVIL
        body["method"].update(name=EVIL, said=EVIL, slices=[EVIL], settings={EVIL: EVIL})
        body["audit"].update(verdict=EVIL, sentences=[EVIL, EVIL], figures={EVIL: 1})
        body["guarantee"] = {"kind": EVIL, "text": EVIL, EVIL: EVIL}
        body["budget"][EVIL] = EVIL
        body["software"][EVIL] = EVIL
        body["not_proven"] = [EVIL]

    text = page(evil)
    assert Page(text).all("script") == []
    assert "<script" not in text.lower()
    assert "alert('x')" not in text
    assert text.count("alert(&#39;x&#39;)") >= 20


def test_marks_that_turn_words_around_are_shown_as_escapes(page):
    text = page(lambda body: body["request"].update(subject_request_id="a\x1b[31m\u202eb"))
    assert "a\\x1b[31m\\u202eb" in text
    assert all(one.isprintable() or one == "\n" for one in text)


def test_no_paths_are_told(page):
    text = page(lambda body: body["method"].update(settings={"cache": "/srv/zoe/cache"}))
    assert "zoe" not in text


def test_an_altered_certificate_has_no_page(certificate, tmp_path):
    for altered, words in (
        (certificate.replace(b"0.84", b"0.85"), "so one of them was altered"),
        (certificate + b" ", "so it was altered"),
        (b"", "no JSON"),
    ):
        with pytest.raises(InputError, match=f"certificate: can't be shown, for .*{words}"):
            write_certificate_page(altered, tmp_path / "page.html")
    assert list(tmp_path.iterdir()) == []


def test_the_page_is_a_file_that_bears_its_certificates_hash(certificate, tmp_path):
    write_certificate_page(certificate, tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert text == certificate_html(certificate.decode())
    assert hashlib.sha256(certificate).hexdigest() in text
    with pytest.raises(InputError, match=r"must end in .html"):
        write_certificate_page(certificate, tmp_path / "page.json")


def test_the_first_and_last_days_that_there_are_have_a_page(page):
    times = {"received_time": "0001-01-01T00:00:00+23:59", "completed_time": "9999-12-31T23:59:59-23:59"}
    assert "0001-01-01" in page(lambda body: body["request"].update(times))
