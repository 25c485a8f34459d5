"""The verifier: what is right is verified, and whatever else is found and named."""

import base64
import copy
import hashlib
import json
import os
import random

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from deletion_certificates import (
    altered,
    at,
    certificate_body,
    failures,
    file_of,
    nodes,
    random_leaves,
    tree_by_definition,
)

from excise.errors import InputError
from excise.ledger import verify as module
from excise.ledger.deletion_certificate import signed
from excise.ledger.keys import LedgerKeys
from excise.ledger.verify import Refused, raw_public_key, subtree, verify

FLIPS = int(os.environ.get("EXCISE_FLIPS", "300"))


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


def test_a_public_key_is_read_from_pem_and_from_digits(key_folder, keys):
    pem = (key_folder / "signing.pub").read_bytes()
    digits = keys.public_key.hex().encode()
    for content in (pem, pem.replace(b"\n", b"\r\n"), b"\n" + pem + b"\n", digits, digits.upper() + b"\n"):
        assert raw_public_key(content) == keys.public_key


def test_public_keys_are_those_of_the_library():
    for _ in range(20):
        key = Ed25519PrivateKey.generate().public_key()
        pem = key.public_bytes(
            Encoding.PEM,
            PublicFormat.SubjectPublicKeyInfo,
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
