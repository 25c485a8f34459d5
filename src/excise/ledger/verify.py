"""Verify a certificate of deletion that excise wrote, without excise: this one file is all.

    python verify.py CERTIFICATE --key PUBLIC_KEY [--model FILE]

It needs Python 3.11 or newer and the package cryptography; no network, no ledger, no torch. The public key comes from
whoever keeps the ledger, by another way than the certificate. The exit code is 0 if all checks hold, and 1 if not.
"""

from __future__ import annotations

import argparse
import base64
import binascii
import hashlib
import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from io import BufferedReader
from pathlib import Path
from typing import Any

FORMAT = "excise-certificate/1"
LARGEST_FILE = 2**28  # bytes of a certificate; one of 10,000 samples has about 2**25
NOT_PROVEN = (
    "That the model behaves as one retrained without the samples: how near it comes, the figures of an audit say.",
    "That no copy of the data, of an earlier model or of what was computed with them exists elsewhere.",
    "That the data set the operator committed to is the one the model was trained on.",
    "That these are the person's samples, and all of them: only with the ledger's secret key can that be seen.",
    "That the ledger is complete: compare its head with other certificates of the same ledger.",
    "That the times are right: they are by the operator's clock.",
)


class Refused(Exception):
    """Something is not as it has to be; the message says what."""


@dataclass(frozen=True)
class Finding:
    """What came of one check."""

    check: str
    holds: bool
    reason: str


def verify(certificate: bytes, public_key: bytes, model: Path | None = None) -> list[Finding]:
    """All that can be checked of a certificate, the bytes of its file; it is verified if every finding holds.

    The public key is the 32 bytes that ``raw_public_key`` gives; the model is the file of that in use, if at hand.
    """
    try:
        document = opened(certificate)
    except Refused as error:
        return [Finding("format", False, str(error))]
    body, signature = document["body"], document["signature"]
    checks: dict[str, Callable[[], str]] = {
        "format": lambda: f"{FORMAT}, with all fields",
        "key": lambda: _by_the_given_key(signature, public_key),
        "signature": lambda: _signed(body, signature),
        "absence": lambda: _absent(body["samples"]),
        "count": lambda: _counted(body["samples"], body["request"]["requests_in_batch"]),
    }
    if model is not None:
        checks["model"] = lambda: _certified_model(body["model"], model)
    return [_finding(name, run) for name, run in checks.items()]


def _finding(check: str, run: Callable[[], str]) -> Finding:
    try:
        return Finding(check, True, run())
    except (Refused, RecursionError) as error:
        return Finding(check, False, str(error))


# The file: there is one way to write a certificate, so that no byte can be changed unseen.


def written(document: dict[str, Any]) -> bytes:
    """The bytes of a certificate's file."""
    text = json.dumps(document, indent=2, sort_keys=True, ensure_ascii=True, allow_nan=False)
    return text.encode("ascii") + b"\n"


def signed_bytes(body: dict[str, Any]) -> bytes:
    """What the signature is of."""
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return FORMAT.encode() + b"\n" + text.encode("ascii")


def opened(certificate: bytes) -> dict[str, Any]:
    """Body, format and signature, with all their fields, if these are the bytes of a certificate; unverified."""
    try:
        document: dict[str, Any] = json.loads(certificate.decode("ascii"))
        require(document, CERTIFICATE, "the certificate")
        again = written(document)
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise Refused(f"it is no JSON in ASCII: {error}") from None
    except RecursionError:
        raise Refused("it is nested too deeply") from None
    except ValueError:  # NaN, 1e999, or a whole number of thousands of digits
        raise Refused("it has a number that no certificate has") from None
    if again != certificate:
        pairs = enumerate(zip(certificate, again, strict=False))
        place = next((place for place, (one, other) in pairs if one != other), min(len(certificate), len(again)))
        raise Refused(f"from byte {place} on it is not written as excise writes it, so it was altered")
    return document


# The fields: a mapping has exactly these, and with "*" others besides; a list has any number of its one kind.

TREE = {"count": "count", "root": "SHA-256"}
MODEL = {"version": "count or name", "file_sha256": "SHA-256", "weights_sha256": "SHA-256"}
AUDIT = {"verdict": "name", "sentences": ["text"], "figures": {"*": "number or null"}, "retrained_models": "count"}
MEASURED = ("forget_loss", "retain_loss", "held_out_loss", "forget_accuracy", "retain_accuracy", "held_out_accuracy")
BUDGET = dict.fromkeys(("epsilon", "delta", "spent_epsilon", "left_epsilon"), "number or null")
BODY = {
    "ledger": {"id": "name", "event": "count", "head": "SHA-256"},
    "request": {
        "subject_request_id": "name",
        "received_time": "time with its zone",
        "due_date": "date",
        "completed_time": "time with its zone",
        "identities": [{"identity_type": "name", "hmac": "SHA-256"}],
        "requests_in_batch": "count",
    },
    "samples": {"deleted": ["SHA-256"], "absence": "pruned tree", "retained": TREE, "retained_before": TREE},
    "model": {"before": MODEL, "after": MODEL, "lineage": "count"},
    "method": {
        "name": "name",
        "settings": {"*": "plain value"},
        "slices": ["text"],
        "parameters_changed": "count or null",
        "step_share": "number or null",
        "seconds": "number or null",
        "said": "text",
    },
    "measured": dict.fromkeys(MEASURED, "pair of numbers or null"),
    "audit": (AUDIT, None),
    "guarantee": ({"kind": "name", "text": "text", "*": "plain value"}, None),
    "budget": ({**BUDGET, "*": "plain value"}, None),
    "software": {"excise": "name", "torch": "name", "python": "name", "*": "name"},
    "not_proven": ["name"],
}
SIGNATURE = {"algorithm": "Ed25519", "public_key": "SHA-256", "value": "signature"}
CERTIFICATE = {"body": BODY, "format": FORMAT, "signature": SIGNATURE}


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and not re.search("[\ud800-\udfff]", value)


def _is_number(value: Any) -> bool:
    return isinstance(value, float) or (type(value) is int and abs(value) < 2**63)


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(_is_text(name) and _is_plain(one) for name, one in value.items())
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool) or _is_text(value) or _is_number(value)


def _is_time(value: Any, *, zoned: bool = True) -> bool:
    try:
        return isinstance(value, str) and (datetime.fromisoformat(value).tzinfo is not None or not zoned)
    except ValueError:
        return False


def _matches(pattern: str) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and re.fullmatch(pattern, value) is not None


KINDS: dict[str, Callable[[Any], bool]] = {
    "text": _is_text,
    "name": lambda value: _is_text(value) and value != "",
    "number": _is_number,
    "count": lambda value: type(value) is int and 0 <= value < 2**63,
    "null": lambda value: value is None,
    "pair of numbers": lambda value: (
        isinstance(value, list) and len(value) == 2 and all(one is None or _is_number(one) for one in value)
    ),
    "plain value": _is_plain,
    "pruned tree": lambda value: isinstance(value, str | list),  # "subtree" looks into it
    "SHA-256": _matches("[0-9a-f]{64}"),
    "signature": _matches("[0-9a-f]{128}"),
    "time with its zone": _is_time,
    "date": lambda value: _is_time(value, zoned=False),
    "Ed25519": _matches("Ed25519"),
    FORMAT: _matches(FORMAT),
}


def require(value: Any, kind: Any, where: str) -> None:
    """Refuse what lacks a field, has one too many, or has one of another kind."""
    if isinstance(kind, tuple):
        if value is not None:
            require(value, kind[0], where)
    elif isinstance(kind, str):
        if not any(KINDS[name](value) for name in kind.split(" or ")):
            raise Refused(f"{where} is no {kind}")
    elif isinstance(kind, list):
        if not isinstance(value, list):
            raise Refused(f"{where} is no list")
        for place, one in enumerate(value):
            require(one, kind[0], f"{where}[{place}]")
    elif not isinstance(value, dict):
        raise Refused(f"{where} is no mapping")
    else:
        _require_fields(value, kind, where)


def _require_fields(value: dict[str, Any], kinds: dict[str, Any], where: str) -> None:
    for name in sorted(kinds.keys() - value.keys() - {"*"}):
        raise Refused(f"{where} has no field {name}")
    for name, one in value.items():
        kind = kinds.get(name, kinds.get("*"))
        if kind is None or not _is_text(name):
            raise Refused(f"{where} has a field that is none of a certificate, {shown(name)}")
        require(one, kind, f"{where}.{shown(name)}".removeprefix("the certificate."))


def shown(text: str) -> str:
    """Text from outside, made safe to print anywhere."""
    return ascii(text[:80])[1:-1]


# The checks: each says what it found, or refuses.


def _by_the_given_key(signature: dict[str, str], public_key: bytes) -> str:
    if signature["public_key"] != public_key.hex():
        raise Refused(f"it is signed by another key, {signature['public_key']}, not by {public_key.hex()}")
    return f"it names the key that was given, {public_key.hex()}"


def _signed(body: dict[str, Any], signature: dict[str, str]) -> str:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(signature["public_key"]))
        key.verify(bytes.fromhex(signature["value"]), signed_bytes(body))
    except (InvalidSignature, ValueError):
        raise Refused("body and signature don't belong together, so one of them was altered") from None
    ledger, request = body["ledger"], shown(body["request"]["subject_request_id"])
    return f"unaltered, for request {request}, event {ledger['event']} of a ledger with the head {ledger['head']}"


def _absent(samples: dict[str, Any]) -> str:
    """That no deleted sample is in the tree of the retained ones."""
    deleted, retained = samples["deleted"], samples["retained"]
    if not deleted:
        raise Refused("it names no deleted sample, so it certifies nothing")
    if deleted != sorted(set(deleted)):
        raise Refused("the deleted samples are not in order, or one is named twice")
    count, root = subtree(samples["absence"], [bytes.fromhex(one) for one in deleted])
    if (count, root.hex()) != (retained["count"], retained["root"]):
        raise Refused("the proof of absence is of another set of retained samples than the certificate names")
    return f"none of the {len(deleted):,} deleted is among the {count:,} retained samples"


def subtree(pruned: Any, leaves: Sequence[bytes], depth: int = 0) -> tuple[int, bytes]:
    """Number of samples and hash of a pruned tree, refused unless it shows that the leaves are absent.

    A subtree of no sample has the hash 0; of one, SHA-256 of 0x00 and its leaf; of more, SHA-256 of 0x01 and number and
    hash of both halves, in which the next bit of all leaves is 0 and 1. What is not shown is "number:hash", or "0".
    """
    if isinstance(pruned, str):
        return _stub(pruned, leaves)
    if not isinstance(pruned, list) or len(pruned) != 2 or depth == 256:
        raise Refused("the proof of absence is no tree of pairs")
    if not leaves:
        raise Refused("the proof of absence shows a subtree that no deleted sample leads to")
    halves: tuple[list[bytes], list[bytes]] = ([], [])
    for leaf in leaves:
        halves[leaf[depth // 8] >> (7 - depth % 8) & 1].append(leaf)
    found = [subtree(half, inside, depth + 1) for half, inside in zip(pruned, halves, strict=True)]
    count = sum(number for number, _ in found)
    if not 2 <= count < 2**63:
        raise Refused("the proof of absence has a branch of too few samples, or too many")
    content = b"".join(number.to_bytes(8, "big") + digest for number, digest in found)
    return count, hashlib.sha256(b"\x01" + content).digest()


def _stub(text: str, leaves: Sequence[bytes]) -> tuple[int, bytes]:
    if text == "0":
        return 0, bytes(32)
    if not re.fullmatch("[1-9][0-9]{0,17}:[0-9a-f]{64}", text):
        raise Refused("the proof of absence has a subtree that is not written as a number and a hash")
    count, digest = int(text.partition(":")[0]), bytes.fromhex(text.partition(":")[2])
    if leaves and count > 1:
        raise Refused(f"the proof of absence ends too early, so sample {leaves[0].hex()} may be retained")
    for leaf in leaves:
        if hashlib.sha256(b"\x00" + leaf).digest() == digest:
            raise Refused(f"sample {leaf.hex()} is said to be deleted, and is retained")
    return count, digest


def _counted(samples: dict[str, Any], batch: int) -> str:
    before, after, deleted = samples["retained_before"]["count"], samples["retained"]["count"], len(samples["deleted"])
    found = f"{before:,} samples before, {after:,} after, {deleted:,} deleted by this request, in a batch of {batch:,}"
    if batch < 1 or before - after < deleted or (batch == 1 and before - after != deleted):
        raise Refused(f"{found}: that does not add up")
    return found


def _certified_model(model: dict[str, Any], file: Path) -> str:
    with open_file(file) as content:
        found = hashlib.file_digest(content, "sha256").hexdigest()
    if found == model["after"]["file_sha256"]:
        return f"the file is the certified model, {found}"
    what = "the model before the deletion" if found == model["before"]["file_sha256"] else "another model"
    raise Refused(f"the file is {what}, {found}; the certified one is {model['after']['file_sha256']}")


# Files and the command line.


def raw_public_key(content: bytes) -> bytes:
    """The 32 bytes of a public key, from the content of its file: PEM, or 64 hexadecimal digits."""
    if b"PRIVATE KEY" in content:
        raise Refused("this is a private key, which must stay secret; name the public one, signing.pub")
    if re.fullmatch(rb"\s*[0-9a-fA-F]{64}\s*", content):
        return bytes.fromhex(content.decode("ascii"))
    pem = re.fullmatch(rb"\s*-----BEGIN PUBLIC KEY-----([A-Za-z0-9+/=\s]+)-----END PUBLIC KEY-----\s*", content)
    start = bytes.fromhex("302a300506032b6570032100")  # of every public key of Ed25519: RFC 8410
    try:
        inside = base64.b64decode(b"".join(pem[1].split()), validate=True) if pem else b""
    except binascii.Error:
        inside = b""
    if not inside.startswith(start) or len(inside) != len(start) + 32:
        raise Refused("this is no public key of Ed25519, in PEM or as 64 hexadecimal digits")
    return inside[len(start) :]


def open_file(path: Path) -> BufferedReader:
    """A file to be read; a folder, pipe or device is none."""
    try:
        if path.is_file():
            return path.open("rb")
    except OSError as error:
        raise Refused(f"{shown(str(path))} can't be read ({error.strerror})") from None
    raise Refused(f"{shown(str(path))} is no file")


def read(path: Path) -> bytes:
    """The bytes of a file that is no larger than a certificate may be."""
    with open_file(path) as file:
        if len(content := file.read(LARGEST_FILE + 1)) <= LARGEST_FILE:
            return content
    raise Refused(f"{shown(str(path))} is larger than any certificate")


def verify_files(certificate: Path, key: Path, model: Path | None = None) -> list[Finding]:
    """The same as ``verify`` for files; one that can't be read is a finding too."""
    check = "key"
    try:
        public_key, check = raw_public_key(read(key)), "format"
        return verify(read(certificate), public_key, model)
    except Refused as error:
        return [Finding(check, False, str(error))]


def in_words(findings: Sequence[Finding], encoding: str = "utf-8") -> str:
    """Findings line by line, what they come to, and what they do not prove, for a terminal of that encoding."""
    marks = "✓✗" if encoding.lower().startswith("utf") else "+X"
    lines = [f"{marks[0 if one.holds else 1]} {one.check}: {one.reason}" for one in findings]
    lines.append("verified" if all(one.holds for one in findings) else "NOT VERIFIED: don't rely on this certificate")
    return "\n".join([*lines, "", "What this does not prove:", *(f"- {sentence}" for sentence in NOT_PROVEN)])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; gives the exit code."""
    parser = argparse.ArgumentParser(description="Verify a certificate of deletion.")
    parser.add_argument("certificate", type=Path, help="the certificate, a .json file")
    parser.add_argument("--key", type=Path, required=True, help="public key of the ledger, in PEM or hexadecimal")
    parser.add_argument("--model", type=Path, help="the model in use, to see whether it is the certified one")
    asked = parser.parse_args(arguments)
    try:
        findings = verify_files(asked.certificate, asked.key, asked.model)
    except ImportError:
        print("verify.py needs the package cryptography: pip install cryptography", file=sys.stderr)
        return 1
    try:
        print(in_words(findings, sys.stdout.encoding), flush=True)
    except BrokenPipeError:  # the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0 if all(one.holds for one in findings) else 1


if __name__ == "__main__":
    sys.exit(main())
