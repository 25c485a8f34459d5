"""Certificates of deletion: what one says is checked, signed and, before it is given out, verified."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from excise.errors import InputError
from excise.ledger.keys import LedgerKeys
from excise.ledger.verify import BODY, FORMAT, NOT_PROVEN, Refused, require, signed_bytes, verify, written

__all__ = ["NOT_PROVEN", "signed"]


def signed(body: Mapping[str, Any], keys: LedgerKeys) -> str:
    """The text of a certificate's file, with all that ``excise.ledger.verify.BODY`` lists in its body.

    A body that lacks a field, or whose proof of absence does not hold, is refused: no certificate is given out that
    would not be verified.
    """
    try:
        plain = json.loads(json.dumps(dict(body), allow_nan=False))
        require(plain, BODY, "body")
        signature = keys.sign(signed_bytes(plain))
    except Refused as error:
        raise InputError(f"body can't be certified: {error}.") from None
    except (TypeError, ValueError, RecursionError) as error:  # what JSON has not, or contains itself
        raise InputError(f"body can't be written as JSON ({error}); pass text, numbers, lists and mappings.") from None
    value = {"algorithm": "Ed25519", "public_key": keys.public_key.hex(), "value": signature.hex()}
    content = written({"body": plain, "format": FORMAT, "signature": value})
    for finding in verify(content, keys.public_key):
        if not finding.holds:
            raise InputError(f"body can't be certified: {finding.reason}.")
    return content.decode("ascii")
