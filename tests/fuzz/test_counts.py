"""That the fuzz tests try as many inputs as is said of them; each of them asserts its own share."""

from fuzz.harness import DEFAULT, SHARES, TOTAL, share


def test_all_shares_together_are_the_promised_count():
    assert DEFAULT == 2000
    assert sum(share(name) for name in SHARES) >= TOTAL >= DEFAULT
