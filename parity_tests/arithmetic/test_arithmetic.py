"""Every operation returns the exact value on its inputs rounded once, judged by bytes against rationals and mpmath."""

import tracemalloc
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from numpy_ref.arithmetic import fixedpoint, rounding
from numpy_ref.arithmetic import operations as arithmetic
from parity_tests.oracles import STORED_IN, exact_function, exact_matmul, exact_sum, nearest, same_bytes
from parity_tests.strategies import KINDS, factors, numbers, vectors

F = np.float32
FLOATS = st.floats(width=32, allow_nan=True, allow_infinity=True)


def column(*values: float) -> np.ndarray:
    return np.array(values, F)[:, None]


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_the_oracle_rounds_as_the_hardware_does(x: float) -> None:
    with np.errstate(over="ignore"):
        assert same_bytes(nearest(Fraction(x)), F(x) + F(0))


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
    a, b = numbers(rng, kind, (m, k)), numbers(rng, kind, (k, n))
    if kind == "cancelling":
        a[:, k // 2 : k // 2 * 2], b[k // 2 : k // 2 * 2] = a[:, : k // 2], -b[: k // 2]
    c = arithmetic.matmul(a, b)
    for i, j in zip(rng.integers(m, size=60), rng.integers(n, size=60), strict=True):
        assert same_bytes(c[i, j], exact_sum(list(zip(a[i].tolist(), b[:, j].tolist(), strict=True))))


# Type of the inputs, format of the result.
TYPES = [
    ("float16", "float16"),
    ("float16", "bfloat16"),
    ("float16", "float32"),
    ("float32", "float16"),
    ("float32", "bfloat16"),
    ("float64", "float64"),
]


@pytest.mark.parametrize(("dtype", "kind"), TYPES)
@given(data=st.data())
def test_every_type_is_multiplied_and_summed_exactly_and_rounded_once(
    dtype: str, kind: str, data: st.DataObject
) -> None:
    a, b = data.draw(factors(dtype=dtype))
    if kind == "bfloat16" and dtype == "float32" and data.draw(st.booleans()):
        a, b = (arithmetic.round_to(x, "bfloat16") for x in (a, b))
    assert same_bytes(arithmetic.matmul(a, b, kind=kind), exact_matmul(a, b, kind))
    rows = a.tolist()
    want = np.array([exact_sum([(x, 1.0) for x in row], kind) for row in rows], STORED_IN[kind])
    assert same_bytes(arithmetic.sum(a, axis=1, kind=kind), want)
    order = np.random.default_rng(len(rows)).permutation(a.shape[1])
    assert same_bytes(arithmetic.matmul(a[:, order], b[order], kind=kind), arithmetic.matmul(a, b, kind=kind))


@pytest.mark.parametrize(("dtype", "kind"), [*TYPES, ("float32", "float32")])
def test_the_fast_paths_equal_the_definition_in_whole_numbers(dtype: str, kind: str) -> None:
    rng = np.random.default_rng(5)
    for case in KINDS:
        if case == "special":  # the definition knows finite numbers only
            continue
        for m, k, n in ((9, 40, 12), (40, 130, 33), (3, 1030, 5)):
            if dtype == "float64" and k > 40:
                continue
            a, b = numbers(rng, case, (m, k), dtype), numbers(rng, case, (k, n), dtype)
            if case == "cancelling":
                a[:, k // 2 : k // 2 * 2], b[k // 2 : k // 2 * 2] = a[:, : k // 2], -b[: k // 2]
            want = np.array(fixedpoint.matmul(a.tolist(), b.T.tolist(), kind)).astype(STORED_IN[kind])
            assert same_bytes(arithmetic.matmul(a, b, kind=kind), want), (case, m, k, n)
            sums = np.array([fixedpoint.total(row, kind) for row in a.tolist()]).astype(STORED_IN[kind])
            assert same_bytes(arithmetic.sum(a, axis=1, kind=kind), sums), (case, m, k)


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float32", "float64"])
@given(st.integers(-(2**120), 2**120), st.integers(-1300, 1100))
@example(2**24 + 1, 0)
@example(1, -1075)
@example(3, -1075)
@example(2**54 - 1, 970)
def test_a_scaled_number_is_rounded_to_the_nearest_of_its_format(kind: str, m: int, e: int) -> None:
    assert same_bytes(STORED_IN[kind](fixedpoint.rounded((m, e), kind)), nearest(Fraction(m) * Fraction(2) ** e, kind))


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float32"])
@given(st.floats(allow_nan=False, allow_infinity=False) | st.floats(-1e5, 1e5) | st.floats(-1e-4, 1e-4))
@example(1 + 2.0**-11 + 2.0**-40)
@example(65519.9999999)
@example(1 + 2.0**-8 + 2.0**-40)
@example(2.0**-25)
@example(2.0**-134 * (1 + 2.0**-40))
@example(3.4e38)
def test_a_float64_is_rounded_to_16_bits_once(kind: str, x: float) -> None:
    assert same_bytes(
        arithmetic.round_to(np.array([x]), kind) + STORED_IN[kind](0), np.array([nearest(Fraction(x), kind)])
    )


def test_a_cast_through_float32_rounds_twice_and_is_told_apart() -> None:
    x = np.array([1 + 2.0**-11 + 2.0**-40, 65519.9999999, 1 + 2.0**-8 + 2.0**-40])
    with np.errstate(over="ignore"):
        assert not same_bytes(x.astype(F).astype(np.float16), arithmetic.round_to(x, "float16"))
    assert not same_bytes(arithmetic.round_to(x.astype(F), "bfloat16"), arithmetic.round_to(x, "bfloat16"))
    special = np.array([np.inf, -np.inf, np.nan, -0.0])
    for kind in ("float16", "bfloat16", "float32", "float64"):
        assert same_bytes(arithmetic.round_to(special, kind), special.astype(STORED_IN[kind]))


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_functions_of_every_float16_are_correctly_rounded(kind: str) -> None:
    x = np.arange(1 << 16).astype(np.uint16).view(np.float16)
    x = x[np.isfinite(x)][::7]
    small = x[np.abs(x) < 110]
    assert same_bytes(arithmetic.exp(small, kind=kind), np.array([exact_function("exp", v, kind) for v in small]))
    positive = x[x > 0]
    assert same_bytes(arithmetic.log(positive, kind=kind), np.array([exact_function("log", v, kind) for v in positive]))
    assert same_bytes(arithmetic.sqrt(positive), np.array([exact_function("sqrt", v, "float16") for v in positive]))


@given(hnp.arrays(np.float64, st.integers(0, 40), elements=st.floats(-760, 720) | st.floats()))
@example(np.array([0.0, -0.0, 1.0, 709.78, 709.79, -745.13, -745.14, -708.4, 1e-320, np.inf, -np.inf, np.nan]))
def test_float64_functions_are_within_a_unit_in_the_last_place(x: np.ndarray) -> None:
    for name, y in (("exp", arithmetic.exp(x)), ("log", arithmetic.log(x))):
        for v, found in zip(x.tolist(), y.tolist(), strict=True):
            if not np.isfinite(v) or (name == "exp" and abs(v) > 800) or (name == "log" and v <= 0):
                with np.errstate(all="ignore"):
                    assert same_bytes(np.float64(found), getattr(np, name)(np.float64(v)))
                continue
            with mpmath.workprec(1200):
                exact = getattr(mpmath, name)(mpmath.mpf(v))
                beyond = abs(exact) >= mpmath.mpf(2) ** 1024 * (1 - mpmath.mpf(2) ** -54)
                unit = mpmath.mpf(2) ** max(int(mpmath.floor(mpmath.log(abs(exact), 2))) - 52, -1074) if exact else 1
                assert beyond if np.isinf(found) else abs(mpmath.mpf(found) - exact) < unit, (name, v)


@pytest.mark.parametrize("name", ["matmul", "sum", "exp", "log"])
def test_an_impossible_format_is_refused(name: str) -> None:
    vector = np.ones(2, F)
    arguments = [vector[None], vector[:, None]] if name == "matmul" else [vector]
    for kind in ("float64", "float8", 32):
        with pytest.raises(TypeError, match="kind: expected float16, bfloat16 or float32 for float32 inputs, found"):
            getattr(arithmetic, name)(*arguments, kind=kind)
    with pytest.raises(TypeError, match="kind: expected float64 for float64 inputs, found 'float32'"):
        getattr(arithmetic, name)(*[x.astype(np.float64) for x in arguments], kind="float32")
    with pytest.raises(TypeError, match="found float32 and float64"):
        arithmetic.matmul(np.ones((1, 1), F), np.ones((1, 1)))


@st.composite
def near_boundaries(draw: st.DrawFn) -> np.ndarray:
    """Terms whose exact sum lies on a rounding boundary of float32, or beside it by one unit of float64 or far less."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    x = np.ldexp(F(1 + rng.integers(0, 2**23) * 2.0**-23), draw(st.integers(-60, 60)))
    place = np.spacing(x)
    beside = draw(st.sampled_from([0.0, 2.0**-53, 2.0**-52, 2.0**-80])) * draw(st.sampled_from([-1, 1])) * float(x)
    noise = (rng.standard_normal(draw(st.integers(0, 40))) * float(x) * 2.0 ** draw(st.integers(-3, 12))).astype(F)
    terms = np.concatenate([[x, place / 2, F(beside)], noise, -noise]).astype(F)
    return rng.permutation(terms) * F(draw(st.sampled_from([-1, 1])))


def sums_of(terms: np.ndarray) -> list[np.ndarray]:
    scale = F(4.0)
    return [
        arithmetic.sum(terms),
        arithmetic.matmul(np.tile(terms * scale, (9, 1)), np.full((len(terms), 9), 1 / scale, F))[8, 8],
    ]


@given(near_boundaries())
def test_results_at_and_beside_rounding_boundaries_are_right(terms: np.ndarray) -> None:
    want = exact_sum([(x, 1.0) for x in terms.tolist()])
    assert all(same_bytes(found, want) for found in sums_of(terms))


def test_a_bound_that_is_too_small_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arithmetic, "UNIT", 2.0**-60)
    wrong = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        noise = (rng.standard_normal(40) * 64).astype(F)
        terms = rng.permutation(np.concatenate([[F(1), F(2.0**-24), F(2.0**-53)], noise, -noise]).astype(F))
        wrong += not all(same_bytes(x, exact_sum([(t, 1.0) for t in terms.tolist()])) for x in sums_of(terms))
    assert wrong > 10


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
def test_sums_and_products_do_not_depend_on_order(a: np.ndarray, random: object) -> None:
    a = a.reshape(-1)
    order = np.random.default_rng(random.randrange(2**32)).permutation(a.size)  # type: ignore[attr-defined]
    assert same_bytes(arithmetic.sum(a[order]), arithmetic.sum(a))
    row, mixed = a[None], a[None, order]
    assert same_bytes(arithmetic.matmul(row, np.ones_like(row).T).reshape(()), arithmetic.sum(a))
    assert same_bytes(arithmetic.matmul(mixed, mixed.T), arithmetic.matmul(row, row.T))


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


@pytest.mark.parametrize("n", [np.int64(7), np.uint8(7), np.array(7)])
def test_power_takes_whole_numbers_of_numpy(n) -> None:
    assert fixedpoint.power.__wrapped__(0.97, n) == fixedpoint.power(0.97, 7)
    assert type(fixedpoint.power.__wrapped__(0.97, n)) is float


@pytest.mark.parametrize(("base", "n"), [(0.9, 2.0), (0.9, -1), (0.9, "2"), (float("inf"), 2), (0.9, None)])
def test_power_refuses_what_is_no_whole_number_or_not_finite_whatever_came_before(base: float, n: object) -> None:
    fixedpoint.power(0.9, 2)
    with pytest.raises(ValueError, match="whole n >= 0"):
        fixedpoint.power(base, n)


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


BAD = [
    np.ones((2, 2), int),
    np.ones((2, 2), object),
    np.ones((2, 2), complex),
    np.ones((2, 2), ">f4"),
    np.ma.ones((2, 2)),
    [[1.0]],
    None,
]


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: f"{type(bad).__name__} {getattr(bad, 'dtype', '')}")
def test_other_types_are_refused_with_their_name(bad: object) -> None:
    good = np.ones((2, 2), F)
    for call in (
        lambda: arithmetic.matmul(good, bad),
        lambda: arithmetic.matmul(bad, good),
        *(lambda f=f: f(bad) for f in (arithmetic.sum, arithmetic.sqrt, arithmetic.exp, arithmetic.log)),
    ):
        with pytest.raises(
            TypeError,
            match=r"expected float32 arrays, or all .*, found .*(int|object|complex|>f4|Masked|list|None)",
        ):
            call()


def test_numpy_numbers_are_arrays_without_axes() -> None:
    for function in (arithmetic.sqrt, arithmetic.exp, arithmetic.log, arithmetic.sum):
        for x in (F(1.5), F(2.0**-24)):  # the second one only integers decide for exp
            assert same_bytes(function(x), function(np.array(x)))
            assert same_bytes(function(np.array([x])).reshape(()), function(np.array(x)).reshape(()))


@pytest.mark.parametrize("shapes", [((2, 3), (2, 3)), ((3,), (3, 1)), ((2, 2, 2), (2, 2))])
def test_shapes_that_do_not_chain_are_refused(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    with pytest.raises(ValueError, match=r"expected shapes \(M, K\) and \(K, N\), found"):
        arithmetic.matmul(np.ones(shapes[0], F), np.ones(shapes[1], F))


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


def test_a_sum_of_no_rows_is_empty_however_long_they_are() -> None:
    for shape, axis in (((0, 5000), 1), ((0, 8192), 1), ((5000, 0), 0), ((0, 3), 1)):
        assert arithmetic.sum(np.zeros(shape, F), axis).shape == (0,)


def test_products_that_are_all_zero_cost_no_more_than_a_product() -> None:
    n, k = 500, 2048
    a, b = np.zeros((n, k), F), np.zeros((k, n), F)
    a[np.arange(n), np.arange(n)] = 1.5
    b[np.arange(n) + n, np.arange(n)] = 1.5
    b[0, 0] = 2.0
    arithmetic.matmul(a, b)  # the shared buffers grow first
    tracemalloc.start()
    c = arithmetic.matmul(a, b)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert np.count_nonzero(c) == 1
    assert c[0, 0] == 3
    assert peak < 4 * (a.nbytes + b.nbytes + c.nbytes)


def test_many_small_terms_beside_a_tie_are_not_lost() -> None:
    """float64 adds these in its own order and drops them: only a bound that counts the terms leaves the place open."""
    x = np.zeros((1, 128), F)
    x[0, ::8] = [1, 2.0**-24, -12 * 2.0**-53, *[2.0**-53] * 13]
    want = exact_sum([(v, 1.0) for v in x[0].tolist()])
    assert same_bytes(arithmetic.sum(x, 1)[0], want)
    assert same_bytes(arithmetic.matmul(x, np.ones((128, 1), F))[0, 0], want)
    assert want > 1


def test_what_cancels_between_leading_slices_is_zero() -> None:
    rng = np.random.default_rng(0)
    for k in (128, 256):
        a = (0.7 + 0.3 * rng.random((24, k))).astype(F)
        b = (0.7 + 0.3 * rng.random((k, 24))).astype(F)
        a[:, k // 2 :], b[k // 2 :] = a[:, : k // 2], -b[: k // 2]
        assert not arithmetic.matmul(a, b).any()


def definition(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.array(fixedpoint.matmul(a.tolist(), b.T.tolist(), "float32")).astype(F)


def test_rests_of_slices_count_in_the_bound() -> None:
    """1 - 1 and pairs of small numbers cancel, and what remains lies far below the last bits of their sum."""
    rng = np.random.default_rng(1)
    for _ in range(10):
        a = np.empty((30, 64), F)
        a[:, :2] = 1
        a[:, 2:32] = np.ldexp(1 + rng.random((30, 30)), rng.integers(-40, -24, (30, 30)).astype(np.int32))
        a[:, 32:62] = -a[:, 2:32]
        a[:, 62:] = np.ldexp(1 + rng.random((30, 2)), -75)
        signs = rng.choice(np.array([-1, 1], F), (64, 30))
        signs[1] = -signs[0]
        signs[32:62] = signs[2:32]
        order = rng.permutation(64)  # or the kernel would cancel the pairs before it meets the last numbers
        a, signs = a[:, order], signs[order]
        assert same_bytes(arithmetic.matmul(a, signs), definition(a, signs))


def test_a_single_product_on_a_tie_is_not_taken_for_none() -> None:
    n = 100
    a, b = np.eye(n, dtype=F) * F(1 + 2.0**-12), np.eye(n, dtype=F) * F(1 + 3 * 2.0**-12)
    assert same_bytes(arithmetic.matmul(a, b), definition(a, b))
    assert same_bytes(np.diagonal(arithmetic.matmul(a, b)), np.full(n, exact_sum([(float(a[0, 0]), float(b[0, 0]))])))


def test_slices_of_rows_add_up_without_error() -> None:
    rng = np.random.default_rng(4)
    for terms in (64, 512, 4096):
        half = 0.5 + rng.random((40, terms // 2)) / 2  # full width: 53 bits
        x = np.concatenate([half, -half], axis=1)
        x[:, 0] += 2.0**-50
        want = [nearest(sum((Fraction(v) for v in row), Fraction(0))) for row in x.tolist()]
        assert same_bytes(rounding.round_sums(x, "float32"), np.array(want))


def test_the_short_forms_of_exp_and_log_are_bounded_where_they_are_worst() -> None:
    """Half-way between the entries of their tables, for log next to 1, they stop furthest from the exact value."""
    rng = np.random.default_rng(2)
    odd = rng.choice(np.arange(-99, 100, 2), 40_000)
    x = (odd * np.log(2) * 2.0 ** rng.integers(-10, -6, odd.size) * (1 - rng.random(odd.size) * 2e-3)).astype(F)
    z = (1 + 2.0 ** rng.integers(-8, -5, odd.size) - rng.integers(1, 8000, odd.size) * 2.0**-23).astype(F)
    for name, values in (("exp", x), ("log", z)):
        wide = getattr(arithmetic, name)(values.astype(np.float64))  # within a unit of float64: right but at near ties
        near = np.abs(wide - wide.astype(F)) - np.spacing(wide.astype(F)) / 2
        clear = np.abs(near) > np.abs(wide) * 2.0**-50
        assert same_bytes(getattr(arithmetic, name)(values)[clear], wide.astype(F)[clear])


@pytest.mark.parametrize("bad", [np.ones(2, int), np.ones(2, complex), np.ones(2, object), np.ma.ones(2), [1.0], None])
def test_round_to_refuses_what_it_cannot_round(bad: object) -> None:
    with pytest.raises(TypeError, match="round_to: expected a float32 or float64 array, found"):
        arithmetic.round_to(bad, "float16")  # type: ignore[arg-type]
    for kind in ("foo", ["float16"], None):
        with pytest.raises(TypeError, match="round_to: kind: expected one of float16, bfloat16"):
            arithmetic.round_to(np.ones(2), kind)  # type: ignore[arg-type]
