"""Every operation returns the exact value on its inputs rounded once, judged by bytes against rationals and mpmath."""

from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from numpy_ref import arithmetic, fixedpoint
from parity_tests.oracles import exact_function, exact_matmul, exact_sum, nearest_float32, same_bytes
from parity_tests.strategies import factors, float32_numbers, vectors

F = np.float32
FLOATS = st.floats(width=32, allow_nan=True, allow_infinity=True)


def column(*values: float) -> np.ndarray:
    return np.array(values, F)[:, None]


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_the_oracle_rounds_as_the_hardware_does(x: float) -> None:
    with np.errstate(over="ignore"):
        assert same_bytes(nearest_float32(Fraction(x)), F(x) + F(0))


# A product that underflows, ties both ways, an overflow only of a partial sum, one past the range, 0 * inf.
@given(factors())
@example((np.array([[1e-30, 0.0]], F), column(-1e-30, 0.0)))
@example((np.array([[1.0, 2.0**-24]], F), column(1.0, 1.0)))
@example((np.array([[1.0, 3 * 2.0**-24]], F), column(1.0, 1.0)))
@example((np.array([[1.0, 2.0**-24, 2.0**-80]], F), column(1.0, 1.0, 2.0**-60)))
@example((np.array([[1.0, 2.0**-24, -(2.0**-80)]], F), column(1.0, 1.0, 2.0**-60)))
@example((np.array([[3e38, 3e38, -3e38]], F), column(1.0, 1.0, 1.0)))
@example((np.array([[3e38, 3e38]], F), column(1.0, 1.0)))
@example((np.array([[2.0**127, 2.0**102]], F), column(2.0, -1.0)))
@example((np.array([[np.inf, 1.0]], F), column(0.0, 1.0)))
@example((np.array([[np.inf, -np.inf]], F), column(1.0, 1.0)))
@example((np.array([[0.0, np.inf]], F), column(np.nan, -1.0)))
def test_matmul_is_the_exact_product_rounded_once(ab: tuple[np.ndarray, np.ndarray]) -> None:
    a, b = ab
    assert same_bytes(arithmetic.matmul(a, b), exact_matmul(a, b))


@pytest.mark.parametrize("kind", ["normal", "relu", "signs", "wide", "bits", "ties", "cancelling", "special"])
@pytest.mark.parametrize("shape", [(33, 65, 40), (20, 300, 30), (64, 40, 64)])
def test_matmul_is_exact_where_whole_products_are_formed_from_slices(kind: str, shape: tuple[int, int, int]) -> None:
    rng = np.random.default_rng(1)
    m, k, n = shape
    a, b = float32_numbers(rng, kind, (m, k)), float32_numbers(rng, kind, (k, n))
    if kind == "cancelling":
        a[:, k // 2 : k // 2 * 2], b[k // 2 : k // 2 * 2] = a[:, : k // 2], -b[: k // 2]
    c = arithmetic.matmul(a, b)
    for i, j in zip(rng.integers(m, size=60), rng.integers(n, size=60), strict=True):
        assert same_bytes(c[i, j], exact_sum(list(zip(a[i].tolist(), b[:, j].tolist(), strict=True))))


@given(factors(), st.randoms(use_true_random=False))
def test_matmul_does_not_depend_on_order_batch_or_side(ab: tuple[np.ndarray, np.ndarray], random: object) -> None:
    a, b = ab
    c = arithmetic.matmul(a, b)
    order = np.random.default_rng(random.randrange(2**32)).permutation(a.shape[1])  # type: ignore[attr-defined]
    assert same_bytes(arithmetic.matmul(a[:, order], b[order]), c)
    assert same_bytes(arithmetic.matmul(b.T, a.T).T, c)
    cut = a.shape[0] // 2
    assert same_bytes(np.concatenate([arithmetic.matmul(a[:cut], b), arithmetic.matmul(a[cut:], b)]), c)


@given(vectors(), st.data())
def test_sum_over_any_axes_is_exact_rounded_once(a: np.ndarray, data: st.DataObject) -> None:
    axis = data.draw(st.one_of(st.none(), hnp.valid_tuple_axes(a.ndim), st.integers(-a.ndim, a.ndim - 1)))
    keepdims = data.draw(st.booleans())
    got = arithmetic.sum(a, axis=axis, keepdims=keepdims)
    with np.errstate(all="ignore"):
        assert got.shape == np.sum(a, axis=axis, keepdims=keepdims).shape
    axes = tuple(range(a.ndim)) if axis is None else tuple(i % a.ndim for i in np.atleast_1d(axis))
    rest = [i for i in range(a.ndim) if i not in axes]
    rows = a.transpose(rest + list(axes)).reshape(got.size, -1) if got.size else np.zeros((0, 0), F)
    want = np.array([exact_sum([(x, 1.0) for x in row]) for row in rows.tolist()], F)
    assert same_bytes(got.reshape(-1), want)


@given(vectors(), st.randoms(use_true_random=False))
def test_sum_and_dot_do_not_depend_on_order(a: np.ndarray, random: object) -> None:
    a = a.reshape(-1)
    order = np.random.default_rng(random.randrange(2**32)).permutation(a.size)  # type: ignore[attr-defined]
    assert same_bytes(arithmetic.sum(a[order]), arithmetic.sum(a))
    assert same_bytes(arithmetic.dot(a, np.ones_like(a)), arithmetic.sum(a))
    assert same_bytes(arithmetic.dot(a[order], a[order]), arithmetic.dot(a, a))


def test_a_long_sum_is_exact() -> None:
    a = np.random.default_rng(3).standard_normal(300_001).astype(F)
    assert same_bytes(arithmetic.sum(a), exact_sum([(x, 1.0) for x in a.tolist()]))


@given(hnp.arrays(F, st.integers(0, 70), elements=FLOATS))
@example(np.array([2.0**-24, -(2.0**-25), 3 * 2.0**-24, 88.72284, 88.72283, -103.97208, -103.97207, -0.0], F))
def test_exp_is_correctly_rounded(x: np.ndarray) -> None:
    want = [v if np.isnan(v) else F(np.inf) if v > 200 else F(0) if v < -200 else exact_function("exp", v) for v in x]
    assert same_bytes(arithmetic.exp(x), np.array(want, F))


@given(hnp.arrays(F, st.integers(0, 70), elements=FLOATS))
@example(np.array([1.0, np.nextafter(F(1), F(2)), np.nextafter(F(1), F(0)), 1e-45, 3.4e38, -0.0, 0.0, -1.0], F))
def test_log_is_correctly_rounded(x: np.ndarray) -> None:
    def want(v: np.float32) -> np.float32:
        if np.isnan(v) or v == np.inf:
            return v
        return F(np.nan) if v < 0 else F(-np.inf) if v == 0 else exact_function("log", v)

    assert same_bytes(arithmetic.log(x), np.array([want(v) for v in x], F))


@given(hnp.arrays(F, st.integers(0, 1100), elements=FLOATS))
def test_sqrt_is_correctly_rounded(x: np.ndarray) -> None:
    def want(v: np.float32) -> np.float32:
        return v if np.isnan(v) or v == np.inf or v == 0 else F(np.nan) if v < 0 else exact_function("sqrt", v)

    assert same_bytes(arithmetic.sqrt(x), np.array([want(v) for v in x], F))


def test_exp_and_log_are_right_on_a_sweep_and_where_only_integers_decide() -> None:
    bits = np.arange(0, 1 << 32, 1_000_003, dtype=np.uint64).astype(np.uint32)
    x = bits.view(F)
    x = x[np.isfinite(x)]
    small = x[np.abs(x) < 110]
    assert same_bytes(arithmetic.exp(small), np.array([exact_function("exp", v) for v in small], F))
    positive = x[x > 0]
    assert same_bytes(arithmetic.log(positive), np.array([exact_function("log", v) for v in positive], F))
    undecided = np.array([2.0**-24, -(2.0**-25)], F)  # e**x lies 2**-49 and 2**-51 beside a tie
    assert same_bytes(arithmetic.exp(undecided), np.array([exact_function("exp", v) for v in undecided], F))


@given(st.floats(0, 2), st.integers(0, 400))
@example(0.9, 7000)
@example(0.0, 0)
@example(2.0, 1024)
def test_power_is_correctly_rounded(base: float, n: int) -> None:
    numerator, denominator = base.as_integer_ratio()
    try:
        want = numerator**n / denominator**n
    except OverflowError:
        want = float("inf")
    assert fixedpoint.power(base, n) == want


@given(st.integers(1, 10**7), st.floats(0, 1))
def test_cos_pi_is_correctly_rounded(q: int, share: float) -> None:
    p = round(share * q)
    with mpmath.workprec(300):
        assert fixedpoint.cos_pi(p, q) == float(mpmath.cos(mpmath.pi * p / q)) or 2 * p == q


def plain_float32_product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a @ b


def rounded_twice(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a.astype(np.float64) @ b.astype(np.float64)).astype(F)


def negative_zero_kept(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.where(arithmetic.matmul(a, b) == 0, F(-0.0), arithmetic.matmul(a, b))


@pytest.mark.parametrize("mutant", [plain_float32_product, rounded_twice, negative_zero_kept])
def test_the_oracle_catches_a_product_that_is_not_rounded_once(mutant: object) -> None:
    rng = np.random.default_rng(0)
    a = np.array([[1.0, 2.0**-24, 2.0**-80], [1.0, -1.0, 0.0]], F)
    a = np.vstack([a, rng.standard_normal((20, 3)).astype(F)])
    b = np.array([[1.0, 1.0, 2.0**-60], [1.0, 1.0, 1.0]], F).T
    assert not same_bytes(mutant(a, b), exact_matmul(a, b))  # type: ignore[operator]


@pytest.mark.parametrize("bad", [np.ones((2, 2)), np.ones((2, 2), int), np.ones((2, 2), object), [[1.0]], None])
def test_other_types_are_refused_with_their_name(bad: object) -> None:
    good = np.ones((2, 2), F)
    for call in (
        lambda: arithmetic.matmul(good, bad),
        lambda: arithmetic.dot(bad, good),
        *(lambda f=f: f(bad) for f in (arithmetic.sum, arithmetic.sqrt, arithmetic.exp, arithmetic.log)),
    ):
        with pytest.raises(TypeError, match=r"expected float32 arrays, found .*(float64|int64|object|list|NoneType)"):
            call()


@pytest.mark.parametrize("shapes", [((2, 3), (2, 3)), ((3,), (3, 1)), ((2, 2, 2), (2, 2))])
def test_shapes_that_do_not_chain_are_refused(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    with pytest.raises(ValueError, match=r"expected shapes \(M, K\) and \(K, N\), found"):
        arithmetic.matmul(np.ones(shapes[0], F), np.ones(shapes[1], F))
    with pytest.raises(ValueError, match="two vectors of one length"):
        arithmetic.dot(np.ones((2, 3), F), np.ones((2, 3), F))


def test_arithmetic_is_chosen_by_name() -> None:
    assert arithmetic.arithmetic_named("reproducible").matmul is arithmetic.matmul
    assert arithmetic.arithmetic_named("native").matmul is np.matmul
    with pytest.raises(ValueError, match="expected 'reproducible' or 'native', found 'fast'"):
        arithmetic.arithmetic_named("fast")


def test_flushed_subnormals_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    arithmetic.check_subnormals()
    monkeypatch.setattr(np, "full", lambda n, value: np.zeros(n, type(value)))  # what such a processor would compute
    with pytest.raises(FloatingPointError, match="flushes them to zero"):
        arithmetic.check_subnormals()
