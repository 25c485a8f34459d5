"""The verifier: what is right is verified, whatever else is found and named, and it needs nothing but cryptography."""

import ast
import base64
import copy
import hashlib
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import cryptography
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from deletion_certificates import certificate_body, random_leaves, tree_by_definition
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from excise.errors import InputError
from excise.ledger import verify as module
from excise.ledger.certificate_page import certificate_html
from excise.ledger.deletion_certificate import NOT_PROVEN, signed
from excise.ledger.keys import LedgerKeys
from excise.ledger.verify import Refused, main, raw_public_key, subtree, verify

FLIPS = int(os.environ.get("EXCISE_FLIPS", "300"))
MALFORMED = int(os.environ.get("EXCISE_MALFORMED", "200"))
SOURCE = Path(module.__file__)


def failures(certificate, keys, model=None):
    return {one.check: one.reason for one in verify(certificate, keys.public_key, model) if not one.holds}


def file_of(body, keys):
    """A certificate by the letter of its definition, whatever the body says."""
    message = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    value = keys.sign(b"excise-certificate/1\n" + message.encode()).hex()
    signature = {"algorithm": "Ed25519", "public_key": keys.public_key.hex(), "value": value}
    document = {"body": body, "format": "excise-certificate/1", "signature": signature}
    return (json.dumps(document, indent=2, sort_keys=True, ensure_ascii=True, allow_nan=False) + "\n").encode()


def altered(change, keys):
    """A certificate whose body was changed before it was signed."""
    body = certificate_body()
    change(body)
    return file_of(body, keys)


def nodes(value, path=()):
    """All places in a document."""
    yield path
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, child in children:
        yield from nodes(child, (*path, name))


def at(document, path):
    for name in path:
        document = document[name]
    return document


def test_a_certificate_is_written_by_the_letter_and_verified(certificate, keys):
    assert certificate == file_of(certificate_body(), keys)
    findings = verify(certificate, keys.public_key)
    assert [one.check for one in findings] == ["format", "key", "signature", "absence", "count"]
    assert all(one.holds for one in findings)
    assert "none of the 3 deleted is among the 197 retained" in findings[3].reason


def test_the_retained_root_is_that_of_the_definition(certificate):
    samples = json.loads(certificate)["body"]["samples"]
    leaves = [leaf.tobytes() for leaf in random_leaves(200)]
    for name, kept in (("retained_before", leaves), ("retained", leaves[3:])):
        count, root = tree_by_definition(kept)
        assert samples[name] == {"count": count, "root": root.hex()}
    assert samples["deleted"] == sorted(leaf.hex() for leaf in leaves[:3])


def test_every_flipped_byte_is_found(certificate, keys):
    chance = random.Random(0)
    for _ in range(FLIPS):
        place = chance.randrange(len(certificate))
        byte = chance.choice([one for one in range(256) if one != certificate[place]])
        flipped = certificate[:place] + bytes([byte]) + certificate[place + 1 :]
        assert failures(flipped, keys), (place, byte)


def test_a_certificate_by_another_key_is_named(certificate, keys, tmp_path):
    other = LedgerKeys.make(tmp_path / "keys")
    found = failures(certificate, other)
    assert set(found) == {"key"}
    assert keys.public_key.hex() in found["key"]
    assert other.public_key.hex() in found["key"]


def test_a_signature_by_another_key_under_this_ones_name_is_found(keys, tmp_path):
    document = json.loads(file_of(certificate_body(), LedgerKeys.make(tmp_path / "keys")))
    document["signature"]["public_key"] = keys.public_key.hex()
    assert set(failures(module.written(document), keys)) == {"signature"}


def test_a_signature_that_was_made_for_another_format_is_none(keys):
    body = certificate_body()
    document = json.loads(file_of(body, keys))
    document["signature"]["value"] = keys.sign(module.signed_bytes(body).partition(b"\n")[2]).hex()
    assert set(failures(module.written(document), keys)) == {"signature"}


def test_no_field_can_be_altered_without_the_key(certificate, keys):
    document = json.loads(certificate)
    for path in nodes(document["body"]):
        value = at(document["body"], path)
        if isinstance(value, dict | list):
            continue
        other = copy.deepcopy(document)
        at(other["body"], path[:-1])[path[-1]] = 7 if value is None else value + (1 if value != str(value) else "0")
        assert set(failures(module.written(other), keys)) & {"signature", "format"}, path


BODY = certificate_body()
PATHS = [path for path in nodes(BODY) if path and isinstance(path[-1], str) and "settings" not in path[:-2]]


@pytest.mark.parametrize("path", PATHS)
def test_a_field_that_is_missing_or_of_another_kind_is_named(path, keys):
    free = {"figures", "settings", "bound", "capacity"} & set(path)
    name = ".".join(("body", *(f"[{one}]" if isinstance(one, int) else one for one in path))).replace(".[", "[")
    found = failures(altered(lambda body: at(body, path[:-1]).pop(path[-1]), keys), keys)
    if not free or path[-1] in ("figures", "settings"):
        assert found == {"format": f"{name.rpartition('.')[0]} has no field {path[-1]}"}
    wrong = {"nested": [{"x": "\ud800"}]}
    found = failures(altered(lambda body: at(body, path[:-1]).update({path[-1]: wrong}), keys), keys)
    assert set(found) == {"format"}
    assert found["format"].startswith(name)


def test_a_field_that_certificates_have_not_is_named(keys):
    found = failures(altered(lambda body: body["request"].update({"e\x1bmail": "ada@example.org"}), keys), keys)
    assert found == {"format": "body.request has a field that is none of a certificate, e\\x1bmail"}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("ledger", "event"), -1),
        (("ledger", "event"), True),
        (("ledger", "event"), 1.0),
        (("ledger", "event"), 2**63),
        (("ledger", "event"), 10**4000),
        (("ledger", "head"), "AB" * 32),
        (("ledger", "head"), "ab" * 31),
        (("ledger", "head"), "ab" * 32 + "\n"),
        (("ledger", "id"), ""),
        (("request", "received_time"), "2025-02-31T00:00:00Z"),
        (("request", "received_time"), "2025-02-03T00:00:00"),
        (("request", "received_time"), "yesterday"),
        (("request", "due_date"), "soon"),
        (("request", "identities"), [{"identity_type": "email", "hmac": "ada@example.org"}]),
        (("model", "before", "version"), None),
        (("method", "slices"), "all"),
        (("method", "settings", "deep"), {"er": ["\udfff"]}),
        (("method", "settings", "\ud800"), 1),
        (("measured", "forget_loss"), [1.0]),
        (("measured", "forget_loss"), [1.0, "2"]),
        (("audit", "figures", "x"), "1"),
        (("audit",), []),
        (("budget",), 0),
        (("not_proven",), [""]),
    ],
)
def test_values_that_can_not_be_are_refused(path, value, keys):
    certificate = altered(lambda body: at(body, path[:-1]).update({path[-1]: value}), keys)
    assert set(failures(certificate, keys)) == {"format"}


@pytest.mark.parametrize("path", [("audit",), ("guarantee",), ("budget",), ("measured", "forget_loss")])
def test_what_is_not_known_may_be_null(path, keys):
    assert failures(altered(lambda body: at(body, path[:-1]).update({path[-1]: None}), keys), keys) == {}


def test_deleted_samples_are_there_in_order_and_once(keys):
    for change, words in (
        (lambda body: body["samples"]["deleted"].reverse(), "not in order"),
        (lambda body: body["samples"]["deleted"].append(body["samples"]["deleted"][-1]), "named twice"),
        (lambda body: body["samples"]["deleted"].clear(), "names no deleted sample"),
    ):
        assert words in failures(altered(change, keys), keys)["absence"]


def test_a_sample_that_is_retained_is_found(keys):
    retained = random_leaves(200)[50].tobytes().hex()

    def claim(body):
        body["samples"]["deleted"] = sorted([*body["samples"]["deleted"], retained])
        body["samples"]["retained_before"]["count"] += 1

    found = failures(altered(claim, keys), keys)
    assert set(found) == {"absence"}
    assert retained in found["absence"]


def test_a_proof_for_another_set_is_found(keys):
    def other_set(body):
        body["samples"]["absence"] = certificate_body(samples=150)["samples"]["absence"]

    assert "another set" in failures(altered(other_set, keys), keys)["absence"]


@pytest.mark.parametrize(
    "pruned", ["", "1:", [], [[[]]], ["0"], ["0", "0"], ["0", None], {}, ["0", {"x": 1}], "2", "9" * 99]
)
def test_a_proof_that_is_no_tree_is_refused(pruned, keys):
    def forge(body):
        body["samples"]["absence"] = pruned

    assert set(failures(altered(forge, keys), keys)) & {"absence", "format"}


def test_number_and_root_of_the_retained_samples_must_both_be_those_of_the_proof(keys):
    def count(body):
        for name in ("retained", "retained_before"):
            body["samples"][name]["count"] += 1

    def root(body):
        body["samples"]["retained"]["root"] = body["samples"]["retained_before"]["root"]

    for change in (count, root):
        assert set(failures(altered(change, keys), keys)) == {"absence"}


def test_proofs_that_give_no_root_of_such_a_tree_are_refused():
    """Whatever root the operator commits to: the tree has one form, and shows no more than it must."""
    leaf = bytes.fromhex(certificate_body(deleted=1)["samples"]["deleted"][0])
    bits = f"{int.from_bytes(leaf, 'big'):0256b}"
    one, many = "1:" + "ab" * 32, "9" * 18 + ":" + "ab" * 32

    def along(side, depth, end="0"):
        """Opened on the way to the leaf, with the same at every other turn."""
        pruned = end
        for bit in reversed((bits + "0" * 50)[:depth]):
            pruned = [pruned, side] if bit == "0" else [side, pruned]
        return pruned

    beside = [["0", one], one] if bits[0] == "1" else [one, ["0", one]]
    for pruned, words in (
        (along("0", 1), "too few"),
        (along(one, 1), "too few"),
        (along(many, 30), "or too many"),
        (along(many, 200), "or too many"),
        (along(one, 257), "no tree of pairs"),
        (along(one, 300), "no tree of pairs"),
        (beside, "no deleted sample leads to"),
    ):
        with pytest.raises(Refused, match=words):
            subtree(pruned, [leaf])
    assert subtree(along(one, 256, end=one), [leaf])[0] == 257  # the deepest that there are


def test_a_check_that_runs_out_of_room_fails(certificate, keys, monkeypatch):
    def too_deep(_):
        raise RecursionError("too deep")

    monkeypatch.setattr(module, "signed_bytes", too_deep)
    assert failures(certificate, keys) == {"signature": "too deep"}


@pytest.mark.parametrize(
    ("before", "batch", "holds"),
    [(200, 1, True), (201, 1, False), (199, 1, False), (200, 0, False), (197, 2, False), (200, 2, True)],
)
def test_counts_add_up(before, batch, holds, keys):
    def change(body):
        body["samples"]["retained_before"]["count"] = before
        body["request"]["requests_in_batch"] = batch

    assert set(failures(altered(change, keys), keys)) == (set() if holds else {"count"})


def test_the_model_in_use_is_told_from_others(certificate, keys, tmp_path):
    file = tmp_path / "model.safetensors"
    for content, words in ((b"new", None), (b"old", "the model before the deletion"), (b"neW", "another model")):
        file.write_bytes(content)
        found = failures(certificate, keys, file)
        assert (words is None) == (found == {})
        if words:
            assert words in found["model"]
            assert hashlib.sha256(content).hexdigest() in found["model"]
    assert "is no file" in failures(certificate, keys, tmp_path)["model"]
    assert "is no file" in failures(certificate, keys, tmp_path / "none")["model"]


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


def test_a_body_that_would_not_be_verified_is_not_signed(keys):
    for change, words in (
        (lambda body: body.pop("audit"), "body has no field audit"),
        (lambda body: body["samples"]["deleted"].pop(), "does not add up|no deleted sample leads to"),
        (lambda body: body["method"].update(seconds=float("nan")), "can't be written as JSON"),
        (lambda body: body["method"].update(settings={"x": {1, 2}}), "can't be written as JSON"),
        (lambda body: body["method"].update(settings=body), "can't be written as JSON"),
    ):
        body = certificate_body()
        change(body)
        with pytest.raises(InputError, match=words):
            signed(body, keys)


# the key


def test_a_public_key_is_read_from_pem_and_from_digits(key_folder, keys):
    pem = (key_folder / "signing.pub").read_bytes()
    digits = keys.public_key.hex().encode()
    for content in (pem, pem.replace(b"\n", b"\r\n"), b"\n" + pem + b"\n", digits, digits.upper() + b"\n"):
        assert raw_public_key(content) == keys.public_key


def test_public_keys_are_those_of_the_library():
    for _ in range(20):
        key = Ed25519PrivateKey.generate().public_key()
        pem = key.public_bytes(
            cryptography.hazmat.primitives.serialization.Encoding.PEM,
            cryptography.hazmat.primitives.serialization.PublicFormat.SubjectPublicKeyInfo,
        )
        assert Ed25519PublicKey.from_public_bytes(raw_public_key(pem)) == key


@pytest.mark.parametrize("content", [b"", b"\xff" * 64, b"ab" * 31, b"ab" * 33, b"-----BEGIN PUBLIC KEY-----"])
def test_what_is_no_public_key_is_refused(content, key_folder):
    with pytest.raises(Refused, match="no public key of Ed25519"):
        raw_public_key(content)
    pem = (key_folder / "signing.pub").read_bytes()
    inside = base64.b64decode(b"".join(pem.split(b"\n")[1:-2]))
    longer, shorter = (
        pem.split(b"\n")[0] + base64.b64encode(one) + pem.split(b"\n")[2] for one in (inside + b"x", inside[:-1])
    )
    for broken in (
        longer,
        shorter,
        pem.replace(b"MCow", b"MCoW"),
        pem.replace(b"MCow", b"MC"),
        pem[:40],
        pem.replace(b"BEGIN", b"BEGAN"),
    ):
        with pytest.raises(Refused, match="no public key of Ed25519"):
            raw_public_key(broken)


def test_a_private_key_is_refused_as_such(key_folder):
    with pytest.raises(Refused, match="private key, which must stay secret"):
        raw_public_key((key_folder / "signing.pem").read_bytes())


# the file on its own


@pytest.fixture(scope="session")
def bare(tmp_path_factory, certificate, key_folder):
    """A folder with the verifier, a certificate and a key, and one with nothing but cryptography."""
    folder = tmp_path_factory.mktemp("bare")
    (folder / "verify.py").write_bytes(SOURCE.read_bytes())
    (folder / "certificate.json").write_bytes(certificate)
    (folder / "signing.pub").write_bytes((key_folder / "signing.pub").read_bytes())
    (folder / "new.safetensors").write_bytes(b"new")
    packages = tmp_path_factory.mktemp("packages")
    for one in Path(cryptography.__file__).parents[1].iterdir():
        if one.name in ("cryptography", "cffi") or one.name.startswith("_cffi_backend"):
            (packages / one.name).symlink_to(one)
    return folder, packages


ALONE = """
import runpy, sys
sys.path.insert(0, {packages!r})
for name in ("excise", "torch", "numpy"):
    try:
        __import__(name)
    except ImportError:
        continue
    raise SystemExit(f"{{name}} is there")
sys.argv = ["verify.py", *{arguments!r}]
runpy.run_path("verify.py", run_name="__main__")
"""


def run_alone(bare, *arguments, packages=True, **environment):
    """Run it in a Python that sees neither excise nor torch, in its folder."""
    folder, place = bare
    code = ALONE.format(packages=str(place if packages else folder), arguments=arguments)
    return subprocess.run(
        [sys.executable, "-I", "-S", "-c", code],
        cwd=folder, capture_output=True, encoding="utf-8", env={"PYTHONUTF8": "1"} | environment, check=False,
    )  # fmt: skip


@pytest.mark.slow
def test_the_file_alone_verifies(bare):
    done = run_alone(bare, "certificate.json", "--key", "signing.pub", "--model", "new.safetensors")
    assert done.stderr == ""
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert [line.partition(":")[0] for line in lines[:6]] == [
        "✓ format", "✓ key", "✓ signature", "✓ absence", "✓ count", "✓ model",
    ]  # fmt: skip
    assert lines[6] == "verified"
    assert lines[-len(NOT_PROVEN) :] == [f"- {sentence}" for sentence in NOT_PROVEN]


@pytest.mark.slow
def test_the_file_alone_says_what_is_wrong_and_what_is_missing(bare):
    folder, _ = bare
    (folder / "altered.json").write_bytes((folder / "certificate.json").read_bytes().replace(b"197", b"196"))
    done = run_alone(bare, "altered.json", "--key", "signing.pub")
    assert (done.returncode, done.stderr) == (1, "")
    assert "✗ signature" in done.stdout
    assert "NOT VERIFIED" in done.stdout
    done = run_alone(bare, "certificate.json", "--key", "signing.pub", packages=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "verify.py needs the package cryptography: pip install cryptography\n"


def test_the_file_imports_nothing_but_cryptography_and_python():
    tree = ast.parse(SOURCE.read_text())
    found = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    found |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    others = {name.partition(".")[0] for name in found} - sys.stdlib_module_names
    assert others == {"cryptography"}


def test_the_command_gives_0_or_1_and_a_reason(bare, capsys, tmp_path):
    folder, _ = bare
    good, key = str(folder / "certificate.json"), str(folder / "signing.pub")
    (tmp_path / "empty").touch()
    os.mkfifo(tmp_path / "pipe")
    wrong = [
        tmp_path,
        tmp_path / "none",
        tmp_path / "empty",
        tmp_path / "pipe",
        tmp_path / ("n" * 300),
        "a\0b",
        "\udcff",
        "",
    ]
    assert main([good, "--key", key]) == 0
    for one in map(str, wrong):
        for arguments in ([one, "--key", key], [good, "--key", one], [good, "--key", key, "--model", one]):
            assert main(arguments) == 1
            said = capsys.readouterr().out
            assert "✗" in said
            assert said.replace("✗", "").replace("✓", "").isascii()
            assert said.endswith(f"{NOT_PROVEN[-1]}\n")


def test_a_terminal_without_signs_gets_others(certificate, keys):
    lines = module.in_words(verify(certificate, keys.public_key), "cp1252")
    assert lines.isascii()
    assert lines.startswith("+ format")
    assert module.in_words(verify(b"", keys.public_key), "ascii").startswith("X format")


def test_what_is_not_proven_is_said(certificate):
    words = " ".join(NOT_PROVEN)
    for part in ("retrained", "audit", "copy", "elsewhere", "trained on", "complete", "head with other certificates"):
        assert part in words
    assert json.loads(certificate)["body"]["not_proven"] == list(NOT_PROVEN)
