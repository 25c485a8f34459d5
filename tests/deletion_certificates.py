"""A certificate of deletion as a ledger would make it, of random samples, and the oracle of its tree."""

import json
from hashlib import sha256

import numpy as np

from excise.ledger.deletion_certificate import NOT_PROVEN
from excise.ledger.retained_tree import RetainedTree
from excise.ledger.verify import verify


def tree_by_definition(leaves, depth=0):
    """Number of leaves and hash, as the definition says it."""
    if not leaves:
        return 0, bytes(32)
    if len(leaves) == 1:
        return 1, sha256(b"\x00" + leaves[0]).digest()
    bits = [leaf[depth // 8] >> (7 - depth % 8) & 1 for leaf in leaves]
    halves = [[leaf for leaf, bit in zip(leaves, bits, strict=True) if bit == side] for side in (0, 1)]
    (left, left_hash), (right, right_hash) = (tree_by_definition(half, depth + 1) for half in halves)
    content = left.to_bytes(8, "big") + left_hash + right.to_bytes(8, "big") + right_hash
    return left + right, sha256(b"\x01" + content).digest()


def random_leaves(many, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (many, 32), dtype=np.uint8)


def certificate_body(*, samples=200, deleted=3, audited=True):
    """What a certificate of the first few samples says; the rest is plausible."""
    leaves = random_leaves(samples)
    gone = sorted(leaf.tobytes() for leaf in leaves[:deleted])
    before = RetainedTree(leaves)
    after = before.without(gone)
    digest = sha256(b"any").hexdigest()
    audit = {
        "verdict": "forgotten",
        "sentences": ["The model has forgotten the 3 samples: it answers nearly as a model that never saw them."],
        "figures": {"way to retraining": 0.97, "attack by loss, AUC": 0.512, "relearning steps": None},
        "retrained_models": 3,
    }
    return {
        "ledger": {"id": "digits-2025", "event": 17, "head": sha256(b"event 17").hexdigest()},
        "request": {
            "subject_request_id": "a7551968-d5d6-44b2-9831-815ac9017798",
            "received_time": "2025-03-04T05:06:07Z",
            "due_date": "2025-04-03T05:06:07Z",
            "completed_time": "2025-03-05T06:07:08.900000Z",
            "identities": [{"identity_type": "email", "hmac": sha256(b"email").hexdigest()}],
            "requests_in_batch": 1,
        },
        "samples": {
            "deleted": [leaf.hex() for leaf in gone],
            "absence": after.absence(gone),
            "retained": {"count": after.count, "root": after.root.hex()},
            "retained_before": {"count": before.count, "root": before.root.hex()},
        },
        "model": {
            "before": {"version": 4, "file_sha256": sha256(b"old").hexdigest(), "weights_sha256": digest},
            "after": {"version": 5, "file_sha256": sha256(b"new").hexdigest(), "weights_sha256": digest},
            "lineage": 4,
        },
        "method": {
            "name": "step",
            "settings": {"curvature": "cached", "damping": 0.01, "slices": {"at most": 40}, "guard": None},
            "slices": ["2.weight[3]", "2.weight[17]"],
            "parameters_changed": 1290,
            "step_share": 1.0,
            "seconds": 0.84,
            "said": "One Newton step on 2 slices, with curvature that was computed once.",
        },
        "measured": {
            "forget_loss": [0.021, 0.187],
            "retain_loss": [0.034, 0.034],
            "held_out_loss": [0.121, 0.122],
            "forget_accuracy": [1.0, 0.6667],
            "retain_accuracy": [0.9985, 0.9985],
            "held_out_accuracy": None,
        },
        "audit": audit if audited else None,
        "guarantee": {"kind": "heuristic", "text": "The model is not convex, so no bound is known.", "bound": None},
        "budget": {"epsilon": 1.0, "delta": 1e-5, "spent_epsilon": 0.3, "left_epsilon": 0.9, "capacity": 11},
        "software": {"excise": "1.0", "torch": "2.5.1", "python": "3.11.7"},
        "not_proven": list(NOT_PROVEN),
    }


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
