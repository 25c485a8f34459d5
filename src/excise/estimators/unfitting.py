"""``unfit``: the estimator that ``fit`` on the other rows would have given, with a certificate."""

from __future__ import annotations
