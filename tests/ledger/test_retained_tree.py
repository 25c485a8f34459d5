"""The tree of retained samples: its root is that of the definition, and only what is absent is shown to be."""

from hashlib import sha256

import numpy as np
import pytest
from deletion_certificates import random_leaves, tree_by_definition
from hypothesis import given, settings
from hypothesis import strategies as st

from excise.errors import InputError
from excise.ledger import retained_tree
from excise.ledger.retained_tree import BUCKET, RetainedTree
from excise.ledger.verify import Refused, subtree

often = settings(deadline=None, max_examples=40)

# leaves that differ early, and such that agree in all but the last bits
LEAF = st.one_of(
    st.binary(min_size=32, max_size=32),
    st.integers(0, 300).map(lambda number: number.to_bytes(32, "big")),
    st.integers(0, 300).map(lambda number: bytes([170]) * 16 + number.to_bytes(16, "little")),
)


@st.composite
def parted(draw, *, least=0):
    """Leaves, and some of them to be taken out: a few, or all but a few."""
    leaves = draw(st.lists(LEAF, unique=True, min_size=least, max_size=3 * BUCKET))
    few = draw(st.lists(st.sampled_from(leaves), unique=True, min_size=least)) if leaves else []
    if draw(st.booleans()) and len(leaves) - len(few) >= least:
        return leaves, [leaf for leaf in leaves if leaf not in few]
    return leaves, few


def proves(pruned, absent, tree):
    try:
        return subtree(pruned, sorted(absent)) == (tree.count, tree.root)
    except Refused:
        return False


@often
@given(st.lists(LEAF, unique=True, max_size=3 * BUCKET), st.randoms())
def test_the_root_is_that_of_the_definition_in_any_order(leaves, random):
    shuffled = random.sample(leaves, len(leaves))
    given_ = list(shuffled)
    tree = RetainedTree(shuffled)
    assert (tree.count, tree.root) == tree_by_definition(leaves)
    assert shuffled == given_


@pytest.mark.parametrize("many", [0, 1, 2, BUCKET, BUCKET + 1, 3000])
def test_an_array_has_the_root_of_its_rows(many):
    leaves = random_leaves(many)
    tree = RetainedTree(leaves)
    assert (tree.count, tree.root) == tree_by_definition([leaf.tobytes() for leaf in leaves])
    assert RetainedTree(leaves[::-1][:, ::-1]).root == RetainedTree([leaf[::-1].tobytes() for leaf in leaves]).root


def test_small_trees_by_hand():
    zero, one = bytes(32), bytes(31) + b"\x01"
    assert RetainedTree([]).root == bytes(32)
    assert RetainedTree([zero]).root == sha256(b"\x00" + zero).digest()
    (single, other), count, empty = (sha256(b"\x00" + leaf).digest() for leaf in (zero, one)), b"\x00" * 7, bytes(40)
    expected = sha256(b"\x01" + count + b"\x01" + single + count + b"\x01" + other).digest()
    for _ in range(255):  # all bits but the last are the same, so the other half is empty
        expected = sha256(b"\x01" + count + b"\x02" + expected + empty).digest()
    assert RetainedTree([zero, one]).root == expected


@often
@given(parted())
def test_a_tree_without_leaves_is_the_tree_of_the_rest(parts):
    leaves, gone = parts
    tree = RetainedTree(leaves)
    before = tree.count, tree.root
    left = tree.without(gone)
    assert (left.count, left.root) == tree_by_definition([leaf for leaf in leaves if leaf not in gone])
    assert (tree.count, tree.root) == before


@often
@given(parted(), st.randoms())
def test_leaves_taken_out_one_by_one_leave_the_same_tree(parts, random):
    leaves, gone = parts
    tree = RetainedTree(leaves)
    for leaf in random.sample(gone, len(gone)):
        tree = tree.without([leaf])
    assert (tree.count, tree.root) == tree_by_definition([leaf for leaf in leaves if leaf not in gone])
    assert proves(tree.absence(gone), gone, tree)


@pytest.mark.parametrize("step", [1, 7, 59, 60])
def test_all_leaves_can_be_taken_out_in_the_end(step):
    leaves = [leaf.tobytes() for leaf in random_leaves(60)]
    tree = RetainedTree(leaves)
    for start in range(0, len(leaves), step):
        tree = tree.without(leaves[start : start + step])
        gone, left = leaves[: start + step], leaves[start + step :]
        assert (tree.count, tree.root) == tree_by_definition(left)
        assert proves(tree.absence(gone), gone, tree)
    assert (tree.count, tree.root, tree.absence(leaves)) == (0, bytes(32), "0")


@pytest.mark.slow
@often
@given(parted(least=1), st.data())
def test_absence_is_proven_of_what_was_taken_out_and_never_of_what_is_retained(parts, data):
    leaves, gone = parts
    tree = RetainedTree(leaves).without(gone)
    pruned = tree.absence(gone)
    assert proves(pruned, gone, tree)
    retained = [leaf for leaf in leaves if leaf not in gone]
    text = str(pruned)
    assert not any(leaf.hex() in text for leaf in retained)
    if retained:
        leaf = data.draw(st.sampled_from(retained))
        assert not proves(pruned, [leaf], tree)
        assert not proves(pruned, [*gone, leaf], tree)
        with pytest.raises(InputError, match=leaf.hex()):
            tree.absence([*gone, leaf])


@pytest.mark.slow
@often
@given(parted(least=1), st.randoms())
def test_no_altered_proof_is_taken(parts, random):
    leaves, gone = parts
    tree = RetainedTree(leaves).without(gone)
    pruned = tree.absence(gone)
    for _ in range(5):
        assert not proves(forged(pruned, random), gone, tree)


@pytest.mark.slow
@often
@given(st.lists(LEAF, unique=True, min_size=2, max_size=3 * BUCKET), st.randoms())
def test_no_forged_proof_hides_a_retained_leaf(leaves, random):
    tree, leaf = RetainedTree(leaves), leaves[0]
    way = tree.without([leaf]).absence([leaf])  # right for a tree without it
    own = f"1:{sha256(bytes(1) + leaf).hexdigest()}"
    for pruned in (way, own, "0", f"{tree.count}:{tree.root.hex()}", f"1:{tree.root.hex()}", shown_to(leaves, leaf)):
        assert not proves(pruned, [leaf], tree)
        assert not proves(forged(pruned, random), [leaf], tree)


def forged(pruned, random):
    """The tree with one thing altered: halves exchanged, a count, a hash, a part hidden, made up or cut off."""
    if isinstance(pruned, list) and random.random() < 0.8:
        side = random.randrange(2)
        altered = forged(pruned[side], random)
        return [altered, pruned[1]] if side == 0 else [pruned[0], altered]
    choices = ["", "0:", None, 0, 1.5, {}, [], [pruned], [pruned, "0"], ["0", pruned], [pruned, pruned, "0"]]
    choices += [f"{count}:{'ab' * 32}" for count in (1, 2, 3)]
    if isinstance(pruned, list):
        left, right = pruned
        choices += ["0", [right, left], [left], [left, "0", right], [left, "1:" + "cd" * 32], ["2:" + "cd" * 32, right]]
    elif pruned == "0":
        choices += ["0:" + "00" * 32, "00", "-0", " 0", "0\n", "1:" + "00" * 32]
    else:
        count, _, digest = pruned.partition(":")
        other = sha256(digest.encode()).hexdigest()
        choices += ["0", f"{int(count) + 1}:{digest}", f"{int(count) - 1}:{digest}", f"{count}:{other}"]
        choices += [f" {pruned}", f"0{pruned}", f"-{pruned}", f"{pruned}\n", pruned[:-1], pruned + "0", f"+{pruned}"]
    return random.choice(choices)


def shown_to(leaves, wanted, depth=0):
    """The tree as it is, opened on the way to a leaf that is in it, which ends in its own hash."""
    if len(leaves) < 2 or wanted not in leaves:
        count, digest = tree_by_definition(leaves, depth)
        return f"{count}:{digest.hex()}" if count else "0"
    bits = [leaf[depth // 8] >> (7 - depth % 8) & 1 for leaf in leaves]
    return [
        shown_to([leaf for leaf, bit in zip(leaves, bits, strict=True) if bit == side], wanted, depth + 1)
        for side in (0, 1)
    ]


def test_a_proof_that_ends_before_the_leaf_proves_nothing():
    leaves = [leaf.tobytes() for leaf in random_leaves(40)]
    tree = RetainedTree(leaves[1:])
    with pytest.raises(Refused, match="ends too early"):
        subtree(f"{tree.count}:{tree.root.hex()}", [leaves[0]])


def test_a_retained_leaf_that_is_shown_is_named():
    leaves = [leaf.tobytes() for leaf in random_leaves(40)]
    with pytest.raises(Refused, match=f"{leaves[7].hex()} is said to be deleted, and is retained"):
        subtree(shown_to(leaves, leaves[7]), [leaves[7]])


@pytest.mark.parametrize("work", ["without", "absence"])
@pytest.mark.parametrize(
    ("leaves", "words"),
    [
        ([bytes(31)], "one is 31 bytes"),
        (["0" * 32], "one is a str"),
        (bytes(32), "not a single bytes"),
        (7, "not a single int"),
        (np.zeros((2, 31), dtype=np.uint8), r"shape \(2, 31\)"),
        (np.zeros((2, 32), dtype=np.int64), "array of int64"),
        (np.zeros(32, dtype=np.uint8), r"shape \(32,\)"),
        ([bytes(32), bytes(32)], "twice"),
        (np.zeros((2, 32), dtype=np.uint8), "twice"),
    ],
)
def test_what_is_no_set_of_leaves_is_refused(work, leaves, words):
    for call in (RetainedTree, getattr(RetainedTree([bytes(32)]), work)):
        with pytest.raises(InputError, match=words):
            call(leaves)


@pytest.mark.parametrize("many", [3, 100])
def test_a_leaf_that_is_not_there_is_refused_and_nothing_changes(many):
    leaves = [leaf.tobytes() for leaf in random_leaves(many + 1)]
    tree = RetainedTree(leaves[1:])
    with pytest.raises(InputError, match=f"{leaves[0].hex()}, which is not in the tree"):
        tree.without(leaves)
    with pytest.raises(InputError, match="not in the tree"):
        RetainedTree([]).without(leaves[:1])
    assert (tree.count, tree.root) == tree_by_definition(leaves[1:])


def test_taking_out_a_leaf_is_cheap(monkeypatch):
    leaves = random_leaves(20_000)
    tree, hashed = RetainedTree(leaves), []
    monkeypatch.setattr(retained_tree, "sha256", lambda content: hashed.append(len(content)) or sha256(content))
    for leaf in leaves[:20]:
        hashed.clear()
        one = leaf.tobytes()
        tree.without([one]).absence([one])
        assert len(hashed) < 200  # 15 levels, and buckets of 16 leaves and fewer
