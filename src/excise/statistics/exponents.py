"""Exponents of ten digits and more: on these pandas' quick reader of numbers crashes, or takes 1e4294967295 for 0.1."""

from __future__ import annotations

from typing import BinaryIO

import numpy as np

_READ_AT_ONCE = 2**18
_OVERLAP = 12  # bytes: a letter, a sign and ten digits


def has_long_exponents(stream: BinaryIO) -> bool:
    """Whether what is left of a table has such a number, or what looks like one.

    >>> import io
    >>> has_long_exponents(io.BytesIO(b"x,y\\n1e6666666667,2\\n")), has_long_exponents(io.BytesIO(b"x,y\\n1e-300,2\\n"))
    (True, False)
    """
    end = b""
    while part := stream.read(_READ_AT_ONCE):
        # quotes are left out because the reader leaves them out: it takes "1e"6666666667 for one cell
        plain = end + part.replace(b'"', b"")
        if _has_one(plain):
            return True
        end = plain[-_OVERLAP:]
    return False


def _has_one(content: bytes) -> bool:
    """By whole arrays: expressions are slow where letters are many, searching for bytes where digits are."""
    text = np.frombuffer(content + b"\n" * _OVERLAP, np.uint8)
    digit = text - np.uint8(ord("0")) < 10
    two = digit[:-1] & digit[1:]
    four = two[:-2] & two[2:]
    ten = four[:-6] & four[4:-2] & two[8:]
    begun = (text | 0x20) == ord("e")
    begun[1:] |= begun[:-1] & ((text[1:] == ord("+")) | (text[1:] == ord("-")))
    return bool((begun[: len(ten) - 1] & ten[1:]).any())
