"""Each comparison can fail: the watchmen are watched."""

import hashlib
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from numpy_ref.proof.equivalence import Tolerance, compare, differences, digest, is_below, largest_distance, same_bits
from numpy_ref.tree import copy_tree, flatten, unflatten

F = np.float32


class Pair(NamedTuple):
    t: int
    m: dict[str, Any]


def tree() -> Pair:
    return Pair(3, {"layer0.weight": np.array([[1.0, -0.0], [np.nan, 3.0]], F), "layer0.bias": np.array(2.5, F)})


def changed(path: str, leaf: Any) -> Pair:
    return unflatten(tree(), flatten(tree()) | {path: leaf})


CHANGES = {
    "another number": changed("m/layer0.weight", np.array([[1.0, -0.0], [np.nan, 4.0]], F)),
    "one unit in the last place": changed("m/layer0.bias", np.nextafter(F(2.5), F(3)).reshape(())),
    "the sign of a zero": changed("m/layer0.weight", np.array([[1.0, 0.0], [np.nan, 3.0]], F)),
    "a number for a NaN": changed("m/layer0.weight", np.array([[1.0, -0.0], [0.0, 3.0]], F)),
    "another shape": changed("m/layer0.bias", np.array([2.5], F)),
    "another type": changed("m/layer0.bias", np.array(2.5, np.float64)),
    "an array for a number": changed("t", np.array(3)),
    "a float for an int": changed("t", 3.0),
    "another int": changed("t", 4),
    "a text for a number": changed("t", "3"),
    "one leaf fewer": Pair(3, {"layer0.weight": tree().m["layer0.weight"]}),
    "one leaf more": Pair(3, tree().m | {"layer1.bias": np.zeros(1, F)}),
    "another name": Pair(3, {"layer0.weight": tree().m["layer0.weight"], "bias": tree().m["layer0.bias"]}),
}


def test_a_tree_equals_its_copy_and_the_order_of_names_does_not_count() -> None:
    reordered = Pair(3, dict(reversed(tree().m.items())))
    for other in (tree(), copy_tree(tree()), reordered):
        assert compare(tree(), other).relation == "bitwise"
        assert compare(tree(), other).holds
        assert digest(tree()) == digest(other)


@pytest.mark.parametrize("name", CHANGES)
def test_each_change_is_seen_by_comparison_and_digest(name: str) -> None:
    other = CHANGES[name]
    for sides in ((tree(), other), (other, tree())):
        verdict = compare(*sides)
        assert not verdict.holds
        assert verdict.relation == "differs"
        assert str(verdict.leaf) in str(verdict)
    assert digest(tree()) != digest(other)


@pytest.mark.parametrize("name", [n for n in CHANGES if n not in ("another number", "one unit in the last place")])
def test_a_tolerance_excuses_no_structure_type_or_counter(name: str) -> None:
    verdict = compare(tree(), CHANGES[name], tolerance=Tolerance(relative=2.0**-3, absolute=2.0**-3))
    assert verdict.holds is (name == "the sign of a zero")


def test_all_nans_are_one_and_are_told_from_numbers() -> None:
    payload = np.array([0x7FC00001, 0xFFC00000, 0x7F800001], np.uint32).view(F)
    assert same_bits(payload, np.full(3, np.nan, F))
    assert digest({"x": payload}) == digest({"x": np.full(3, np.nan, F)})
    assert not same_bits(payload, np.full(3, np.inf, F))


@pytest.mark.parametrize("n", [0, -1, 2**53 + 1, 2**63, 2**64 - 1, 2**64, -(2**63) - 1, 2**99])
def test_whole_numbers_of_any_size_are_equal_to_themselves_only(n: int) -> None:
    assert compare({"n": n}, {"n": int(str(n))}).holds
    assert digest({"n": n}) == digest({"n": int(str(n))})
    for other in (n + 1, n - 1, float(n)):
        assert not compare({"n": n}, {"n": other}).holds
        assert digest({"n": n}) != digest({"n": other})


def test_the_worst_leaf_is_named_with_both_values_and_the_distance_in_units_in_the_last_place() -> None:
    near, far = tree(), tree()
    near.m["layer0.bias"] = np.array(np.nextafter(F(2.5), F(3)))
    near.m["layer0.weight"] = np.array([[1.0, -0.0], [np.nan, 3.5]], F)
    verdict = compare(far, near)
    assert (verdict.leaf, verdict.expected, verdict.found, verdict.distance) == ("m/layer0.weight", 3.0, 3.5, 0.5)
    assert verdict.ulps == 2**21
    assert verdict.leaves == ("m/layer0.bias", "m/layer0.weight")
    assert [v.ulps for v in differences(far, near)] == [1, 2**21]


@pytest.mark.parametrize(
    ("a", "b", "ulps"),
    [(0.0, -0.0, 1), (1e-45, -1e-45, 3), (1.0, 1.0000001, 1), (-1.0, -1.0000001, 1), (3.4028235e38, np.inf, 1)],
)
def test_units_in_the_last_place_count_the_floats_between(a: float, b: float, ulps: int) -> None:
    assert compare({"x": np.array(a, F)}, {"x": np.array(b, F)}).ulps == ulps


@given(hnp.arrays(F, 5, elements=st.floats(-8, 8, width=32)), st.integers(-20, 20), st.integers(0, 4))
def test_the_share_of_an_allowance_is_the_distance_over_it(x: np.ndarray, units: int, place: int) -> None:
    y = x.copy()
    y[place] = F(float(x[place]) + units / 16)
    tolerance = Tolerance(relative=0.0, absolute=1.0)
    verdict = compare({"x": x}, {"x": y}, tolerance=tolerance)
    apart = abs(float(y[place]) - float(x[place]))
    assert verdict.share == apart
    assert verdict.holds is (apart <= 1)
    assert largest_distance({"x": x}, {"x": y}) == apart


def test_infinities_and_nans_are_within_no_allowance() -> None:
    for bad in (np.inf, np.nan):
        verdict = compare(
            {"x": np.ones(2, F)}, {"x": np.array([1, bad], F)}, tolerance=Tolerance(relative=1.0, absolute=1.0)
        )
        assert not verdict.holds
    same = {"x": np.array([np.inf, np.nan, 1], F)}
    assert compare(same, copy_tree(same), tolerance=Tolerance(relative=0.0, absolute=0.0)).relation == "bitwise"


def test_a_verdict_reads_as_a_sentence() -> None:
    assert str(compare(tree(), tree())) == "bitwise"
    verdict = compare(tree(), CHANGES["another int"])._replace(step=7, cause="t was reset")
    assert str(verdict) == "differs at step 7 in t: expected 3, found 4 (distance 1). Likely cause: t was reset"
    within = compare({"x": np.ones(1)}, {"x": np.full(1, 1.25)}, tolerance=Tolerance(relative=0.0, absolute=1.0))
    assert str(within) == "within, 25% of the allowance used, most in x"


def test_a_path_is_below_itself_and_its_parents_only() -> None:
    assert is_below("optimizer/m/layer0.weight", "optimizer")
    assert is_below("optimizer/m", "optimizer/m")
    assert not is_below("optimizer/m_hat", "optimizer/m")


def test_the_digest_is_the_one_declared() -> None:
    """The recipe of the digest is part of the interface; a change of it is a change of every golden digest."""
    parts = [
        b"m/layer0.bias\x00<f4\x00()\x00",
        np.array(2.5, F).tobytes(),
        b"t\x00int\x00()\x00",
        (3).to_bytes(8, "little"),
    ]
    assert digest(Pair(3, {"layer0.bias": np.array(2.5, F)})) == hashlib.sha256(b"".join(parts)).hexdigest()
