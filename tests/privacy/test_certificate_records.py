"""A certificate that is read from a file: every value is checked, so that no report quotes what can't be one."""

import json
from dataclasses import asdict

import pytest

from excise.errors import InputError
from excise.privacy.certificate import Certificate, certify

PROVEN = asdict(certify(0.02, 0.01, convex=True, sigma=3.0, delta=1e-5))
UNPROVEN = asdict(certify(0.02, 0.01, convex=False))


@pytest.mark.parametrize("record", [PROVEN, UNPROVEN], ids=["proven", "unproven"])
def test_what_was_written_is_read_back(record):
    assert asdict(Certificate.from_dict(json.loads(json.dumps(record)), "w")) == record


def test_one_of_an_earlier_version_is_read():
    earlier = {name: value for name, value in PROVEN.items() if name not in ("margin", "last_layer_only")}
    assert Certificate.from_dict(earlier, "w").bound == PROVEN["bound"]


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({**PROVEN, "bound": None}, "bound must be a finite number"),
        ({**PROVEN, "bound": "0.1"}, "bound must be a finite number that is not negative, not '0.1'"),
        ({**PROVEN, "bound": -1.0}, "bound must be a finite number"),
        ({**PROVEN, "bound": float("nan")}, "bound must be a finite number"),
        ({**PROVEN, "bound": 10**400}, "bound must be a finite number"),
        ({**PROVEN, "bound": True}, "bound must be a finite number"),
        ({**PROVEN, "gradient_norm": None}, "gradient_norm must be"),
        ({**PROVEN, "epsilon": [1]}, "epsilon must be"),
        ({**PROVEN, "kind": "proven"}, 'kind must be "convex" or "heuristic"'),
        ({**PROVEN, "kind": ["convex"]}, 'kind must be "convex" or "heuristic"'),
        ({**PROVEN, "reason": 3}, "reason must be words"),
        ({**PROVEN, "last_layer_only": "no"}, "last_layer_only must be true or false"),
        ({**UNPROVEN, "bound": 0.1}, "bound must be null"),
        ({**UNPROVEN, "epsilon": 0.1}, "epsilon must be null"),
        ({**PROVEN, "other": 1}, "must be a mapping of bound"),
        ({"kind": "convex"}, "must be a mapping of bound"),
        ([1], "must be a mapping of bound"),
    ],
)
def test_damage_is_named(record, words):
    with pytest.raises(InputError, match=words) as caught:
        Certificate.from_dict(record, "w.safetensors")
    assert str(caught.value).startswith("w.safetensors has a damaged certificate")
