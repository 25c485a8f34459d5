"""What is no certificate, or nearly one: it is refused in words, never with a traceback."""

import json
import os
import sys

import pytest
from deletion_certificates import at, certificate_body, failures, file_of, nodes
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from excise.ledger.certificate_page import certificate_html

MALFORMED = int(os.environ.get("EXCISE_MALFORMED", "200"))  # of either kind

MALFORMED_FILES = {
    "empty": b"",
    "blank": b" \n",
    "no JSON": b"{",
    "no UTF-8": b"\xff\xfe{}",
    "a mark of UTF-8": b"\xef\xbb\xbf{}",
    "NaN": b'{"body": NaN}',
    "Infinity": b'{"body": -Infinity}',
    "too large": b'{"body": 1e999}',
    "thousands of digits": b'{"body": ' + b"9" * 5000 + b"}",
    "deep lists": b"[" * 100_000,
    "deep lists that end": b"[" * 100_000 + b"]" * 100_000,
    "deep mappings": b'{"body":' * 50_000 + b"1" + b"}" * 50_000,
    "a list": b"[]\n",
    "null": b"null\n",
    "text": b'"excise-certificate/1"\n',
    "a number": b"1\n",
    "surrogates": b'{"body": "\\ud800"}',
    "NUL": bytes(1000),
}


@pytest.mark.parametrize("name", MALFORMED_FILES)
def test_what_is_no_certificate_is_refused_in_words(name, keys):
    found = failures(MALFORMED_FILES[name], keys)
    assert set(found) == {"format"}
    assert found["format"].isascii()
    assert len(found["format"]) < 300


@pytest.mark.slow
@pytest.mark.parametrize("where", ["absence", "settings"])
def test_nesting_is_refused_where_it_is_too_deep_and_ends_in_words_everywhere(where, keys):
    limit, refused = sys.getrecursionlimit(), []
    for depth in (20, 300, *range(880, 1000, 20), 1500):
        nested = "0"
        for _ in range(depth):
            nested = [nested, "0"]
        body = certificate_body()
        if where == "absence":
            body["samples"]["absence"] = nested
        else:
            body["method"]["settings"] = {"deep": nested}
        try:
            sys.setrecursionlimit(50_000)
            content = file_of(body, keys)
        finally:
            sys.setrecursionlimit(limit)
        refused.append(bool(failures(content, keys)))
    assert refused == sorted(refused)  # from some depth on all are refused
    assert refused[0] == (where == "absence")
    assert refused[-1]


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.rstrip(b"\n"),
        lambda text: text + b"\n",
        lambda text: text + b" ",
        lambda text: b" " + text,
        lambda text: text.replace(b"\n", b"\r\n"),
        lambda text: json.dumps(json.loads(text)).encode(),
        lambda text: json.dumps(json.loads(text), indent=2).encode()[:-1] + b', "body": 1}',
        lambda text: text.replace(b'"body": {', b'"body": {},\n  "body": {'),
        lambda text: text.replace(b"0.84", b"0.840"),
        lambda text: text.replace(b"0.84", b"84e-2"),
        lambda text: text.replace(b"digits-2025", b"\\u0064igits-2025"),
        lambda text: text.replace(b"digits-2025", "digíts-2025".encode()),
    ],
)
def test_a_certificate_written_in_another_way_is_refused(change, certificate, keys):
    assert change(certificate) != certificate
    assert set(failures(change(certificate), keys)) == {"format"}


JSON_VALUE = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text())
    | st.sampled_from(["0", "1:" + "ab" * 32, "ab" * 32, "2025-03-04T05:06:07Z", 2**64, "\ud800", 1e308]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@st.composite
def malformed(draw, certificate):
    """Bytes of no certificate, or nearly one: cut, doubled, with other bytes or other values in it."""
    how = draw(st.sampled_from(["bytes", "value", "value", "cut", "insert", "double", "exchange", "document"]))
    place, other = (draw(st.integers(0, len(certificate))) for _ in range(2))
    if how == "bytes":
        return draw(st.binary(max_size=200))
    if how == "cut":
        return certificate[:place] + certificate[max(place, other) :]
    if how == "insert":
        return certificate[:place] + draw(st.binary(min_size=1, max_size=20)) + certificate[place:]
    if how == "double":
        return certificate[:place] + certificate[min(place, other) :]
    if how == "exchange":
        one, two = sorted((place, other))
        return certificate[one:two] + certificate[:one] + certificate[two:]
    document = draw(JSON_VALUE) if how == "document" else with_other_value(draw, json.loads(certificate))
    return (json.dumps(document, indent=2, sort_keys=True) + "\n").encode()


def with_other_value(draw, document):
    path = draw(st.sampled_from([path for path in nodes(document) if path]))
    at(document, path[:-1])[path[-1]] = draw(JSON_VALUE)
    return document


def tried(count):
    return settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


@pytest.mark.slow
def test_malformed_certificates_are_refused_without_a_traceback(certificate, keys):
    @tried(MALFORMED)
    @given(malformed(certificate))
    def check(content):
        assert content == certificate or failures(content, keys)

    check()


@pytest.mark.slow
def test_malformed_certificates_with_a_right_signature_are_refused_or_can_be_shown(keys):
    @tried(MALFORMED)
    @given(st.data())
    def check(data):
        content = file_of(with_other_value(data.draw, certificate_body()), keys)
        if not failures(content, keys):
            assert "<h1" in certificate_html(content)

    check()
