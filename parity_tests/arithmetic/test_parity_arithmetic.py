"""The port's arithmetic has the reference's bits, whatever the layout, order, batch, threads or instruction set."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from numpy_ref.arithmetic import fixedpoint, rounding
from numpy_ref.arithmetic import operations as reference
from numpy_ref.proof.equivalence import digest
from parity_tests.arithmetic import corpus
from parity_tests.arithmetic.corpus import as_array as array
from parity_tests.arithmetic.corpus import as_tensor as tensor
from parity_tests.oracles import STORED_IN, nearest, same_bytes
from parity_tests.strategies import KINDS, factors, numbers, vectors

torch = pytest.importorskip("torch", reason="torch is missing: the port's arithmetic cannot be run")
from torch_port.arithmetic import elementary as port_elementary
from torch_port.arithmetic import operations as port
from torch_port.arithmetic import rounding as port_rounding

F = np.float32
TYPES = [  # type of the inputs, format of the result
    ("float16", "float16"),
    ("float16", "bfloat16"),
    ("float16", "float32"),
    ("float32", "float16"),
    ("float32", "bfloat16"),
    ("float32", "float32"),
    ("float64", "float64"),
]
FORMATS = {"float16": ("float16", "bfloat16", "float32"), "float32": ("float32", "bfloat16", "float16")}
# What the long series of exp and log leave to integers, and would round up; the exact value is below the tie.
UNDECIDED = {"exp": ("0x1.b78498p-1", "0x1.036492p+1", "0x1.bae196p+2"), "log": ("0x1.b88eap+0", "0x1.9ab656p+13")}
SPECIAL = (0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan)


def patterns(dtype: str, count: int = 100_003) -> np.ndarray:
    """Bit patterns over the whole range, a third of them among the subnormal numbers, and all the special ones."""
    size = np.dtype(dtype).itemsize * 8
    bits = (np.arange(count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(64 - size)
    ends = np.finfo(dtype)
    significand = (np.uint64(1) << np.uint64(ends.nmant)) - np.uint64(1)
    bits[::3] &= significand
    bits[-2:] = [~significand | np.uint64(1), 2**64 - 1]  # NaNs with the fewest and with the most bits
    x = bits.astype(f"u{size // 8}").view(dtype)
    edges = np.array([*SPECIAL, ends.max, ends.tiny, ends.smallest_subnormal, -ends.max, 4 - 4 * ends.epsneg], dtype)
    x[: edges.size] = edges
    return x


def ordinary(dtype: str, count: int = 100_003, scale: float = 1.0) -> np.ndarray:
    return (np.random.default_rng(3).standard_normal(count) * scale).astype(dtype)


EVERY_FLOAT16 = np.arange(1 << 16).astype(np.uint16).view(np.float16)
EVERY_BFLOAT16 = (np.arange(1 << 16).astype(np.uint32) << np.uint32(16)).view(F)


def ties(kind: str) -> np.ndarray:
    """Every number halfway between two of a 16-bit format, and beside it by much less than float32 could tell."""
    form = fixedpoint.FORMATS[kind]
    values = EVERY_FLOAT16 if kind == "float16" else EVERY_BFLOAT16
    x = np.sort(np.abs(values[np.isfinite(values)]).astype(np.float64))
    x = np.append(np.unique(x), 2.0**form.largest)
    halfway = (x[1:] + x[:-1]) / 2
    beside = np.concatenate([halfway, *(halfway * (1 + sign * 2.0**-e) for sign in (-1, 1) for e in (26, 40, 52))])
    return np.concatenate([beside, -beside])


def cancelled(a: np.ndarray, b: np.ndarray) -> None:
    """Make the second half of the terms the first half's negatives."""
    half = a.shape[1] // 2
    a[:, half : 2 * half], b[half : 2 * half] = a[:, :half], -b[:half]


# Products and sums.


@pytest.mark.parametrize(("dtype", "kind"), TYPES)
@given(data=st.data())
def test_products_and_sums_of_drawn_matrices_have_the_bits_of_the_reference(
    dtype: str, kind: str, data: st.DataObject
) -> None:
    a, b = data.draw(factors(dtype=dtype))
    assert same_bytes(array(port.matmul(tensor(a), tensor(b), kind=kind)), reference.matmul(a, b, kind=kind))
    for axis in (0, 1):
        assert same_bytes(array(port.sum(tensor(a), axis, kind=kind)), reference.sum(a, axis, kind=kind))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@given(data=st.data())
def test_sums_over_any_axes_have_the_bits_and_the_shape_of_the_reference(dtype: str, data: st.DataObject) -> None:
    a = data.draw(vectors(dtype=dtype))
    axis = data.draw(st.one_of(st.none(), hnp.valid_tuple_axes(a.ndim), st.integers(-a.ndim, a.ndim - 1)))
    keepdims = data.draw(st.booleans())
    found = port.sum(tensor(a), axis, keepdims=keepdims)
    assert same_bytes(array(found), reference.sum(a, axis, keepdims=keepdims))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(33, 65, 40), (20, 300, 30), (64, 40, 64), (7, 1003, 7)])
def test_large_products_have_the_bits_of_the_reference_by_every_path(kind: str, shape: tuple[int, int, int]) -> None:
    rng = np.random.default_rng(1)
    m, k, n = shape
    for dtype, formats in FORMATS.items():
        a, b = numbers(rng, kind, (m, k), dtype), numbers(rng, kind, (k, n), dtype)
        if kind == "cancelling":
            cancelled(a, b)
        for out in formats:
            want = reference.matmul(a, b, kind=out)
            assert same_bytes(array(port.matmul(tensor(a), tensor(b), kind=out)), want)
            assert same_bytes(array(port.matmul(tensor(b).T, tensor(a).T, kind=out).T), want)


def test_products_have_the_bits_of_the_definition_in_whole_numbers() -> None:
    rng = np.random.default_rng(5)
    for kind in set(KINDS) - {"special"}:  # the definition knows finite numbers only
        a, b = numbers(rng, kind, (9, 130)), numbers(rng, kind, (130, 12))
        if kind == "cancelling":
            cancelled(a, b)
        for out in FORMATS["float32"]:
            want = np.array(fixedpoint.matmul(a.tolist(), b.T.tolist(), out)).astype(STORED_IN[out])
            assert same_bytes(array(port.matmul(tensor(a), tensor(b), kind=out)), want), (kind, out)
            sums = np.array([fixedpoint.total(row, out) for row in a.tolist()]).astype(STORED_IN[out])
            assert same_bytes(array(port.sum(tensor(a), 1, kind=out)), sums), (kind, out)


@pytest.mark.parametrize("kind", KINDS)
def test_bfloat16_tensors_give_bfloat16_the_reference_s_for_the_same_numbers(kind: str) -> None:
    rng = np.random.default_rng(2)
    a, b = (rounding.round_to(numbers(rng, kind, shape), "bfloat16") for shape in ((9, 67), (67, 12)))
    if kind == "cancelling":
        cancelled(a, b)
    x, y = tensor(a).bfloat16(), tensor(b).bfloat16()
    with np.errstate(invalid="ignore"):
        root = np.sqrt(a)
    pairs = [
        (port.matmul(x, y), reference.matmul(a, b, kind="bfloat16")),
        (port.sum(x, 0), reference.sum(a, 0, kind="bfloat16")),
        (port.exp(x), reference.exp(a, kind="bfloat16")),
        (port.log(x), reference.log(a, kind="bfloat16")),
        (port.sqrt(x), rounding.round_to(root, "bfloat16")),  # innocuous: 24 bits are enough for 8
    ]
    for found, want in pairs:
        assert found.dtype == torch.bfloat16
        assert same_bytes(array(found), want)
    assert same_bytes(array(port.matmul(x, y, kind="float32")), reference.matmul(a, b))
    assert same_bytes(array(port.exp(x, kind="float16")), reference.exp(a, kind="float16"))


@pytest.mark.parametrize("terms", [4095, 4096, 4097, 300_001])
def test_long_sums_have_the_bits_of_the_reference(terms: int) -> None:
    for kind in ("normal", "wide", "special"):
        a = numbers(np.random.default_rng(terms), kind, (2, terms))
        for out in ("float32", "bfloat16"):
            assert same_bytes(array(port.sum(tensor(a), 1, kind=out)), reference.sum(a, 1, kind=out))
        assert same_bytes(array(port.sum(tensor(a))), reference.sum(a))
    for shape, axis in (((0, 5000), 1), ((0, 8192), 1), ((5000, 0), 0), ((0, 3), 1)):
        assert port.sum(torch.zeros(shape), axis).shape == (0,)


@given(factors(), st.randoms(use_true_random=False))
def test_products_and_sums_do_not_depend_on_order_or_batch(ab: tuple[np.ndarray, np.ndarray], random: Any) -> None:
    a, b = map(tensor, ab)
    c, sums = port.matmul(a, b), port.sum(a, 1)
    order = torch.from_numpy(np.random.default_rng(random.randrange(2**32)).permutation(a.shape[1]))
    assert same_bytes(array(port.matmul(a[:, order], b[order])), array(c))
    assert same_bytes(array(port.sum(a[:, order], 1)), array(sums))
    cut = len(a) // 2
    assert same_bytes(array(torch.cat([port.matmul(a[:cut], b), port.matmul(a[cut:], b)])), array(c))
    assert same_bytes(array(torch.cat([port.sum(a[:cut], 1), port.sum(a[cut:], 1)])), array(sums))


# Functions and casts.


def near_squares(dtype: str) -> np.ndarray:
    """Exact squares, squares of numbers halfway between two of the type, and their neighbours."""
    digits = np.finfo(dtype).nmant
    roots = np.random.default_rng(0).integers(1 << digits, 1 << (digits + 1), 3000).tolist()
    squares = [n * n for n in range(1, 3000)] + [(2 * n + 1) ** 2 for n in roots]
    x = np.array([*map(float, squares), 1.0, 4.0]).astype(dtype)
    return np.concatenate([x, np.nextafter(x, x.dtype.type(0)), np.nextafter(x, x.dtype.type(np.inf))])


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_square_roots_of_all_kinds_of_bit_patterns_are_the_hardware_s(dtype: str) -> None:
    for x in [EVERY_FLOAT16] if dtype == "float16" else [patterns(dtype), np.abs(ordinary(dtype)), near_squares(dtype)]:
        with np.errstate(invalid="ignore"):
            assert same_bytes(array(port.sqrt(tensor(x))), np.sqrt(x))


@pytest.mark.parametrize("name", ["exp", "log"])
def test_exp_and_log_of_all_kinds_of_bit_patterns_have_the_bits_of_the_reference(name: str) -> None:
    undecided = np.array([2.0**-24, -(2.0**-25), *map(float.fromhex, UNDECIDED[name])], F)
    wide = np.random.default_rng(0).uniform(-760, 720, 100_003)
    for x in (EVERY_FLOAT16, patterns("float32"), ordinary("float32", scale=30), undecided):
        for kind in FORMATS[x.dtype.name]:
            found = getattr(port, name)(tensor(x), kind=kind)
            assert same_bytes(array(found), getattr(reference, name)(x, kind=kind)), kind
    for x in (patterns("float64"), wide):
        assert same_bytes(array(getattr(port, name)(tensor(x))), getattr(reference, name)(x))


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_numbers_at_and_beside_every_tie_are_rounded_once(kind: str) -> None:
    x = np.concatenate([ties(kind), SPECIAL, [1 + 2.0**-11 + 2.0**-40, 65519.9999999, 3.4e38, 1e300, -5e-324]])
    found = port.round_to(tensor(x), kind)
    assert found.dtype == getattr(torch, kind)
    assert same_bytes(array(found), rounding.round_to(x, kind))
    some = np.arange(0, x.size, 997)
    some = some[np.isfinite(x[some])]
    want = np.array([nearest(Fraction(v), kind) for v in x[some].tolist()])
    assert same_bytes(array(found[some]) + STORED_IN[kind](0), want)


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float32", "float64"])
def test_every_cast_has_the_bits_of_the_reference(kind: str) -> None:
    for x in (patterns("float32"), patterns("float64"), ordinary("float64")):
        with np.errstate(invalid="ignore"):  # of a signalling NaN
            assert same_bytes(array(port.round_to(tensor(x), kind)), rounding.round_to(x, kind))
    x = torch.ones(3, dtype=torch.float64)
    port.round_to(x, "float64").zero_()
    assert x.all()  # the result is another tensor, as in the reference


# The corpus, and the machine.


def test_the_corpus_has_the_digests_on_record() -> None:
    found, record = corpus.results(corpus.Port(port), corpus.inputs()), corpus.record()
    wrong = [name for name, value in corpus.case_digests(found).items() if record["cases"].get(name) != value]
    assert (wrong, digest(found)) == ([], record["results"])


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    rng = np.random.default_rng(0)
    a, b = tensor(numbers(rng, "normal", (190, 300))), tensor(numbers(rng, "normal", (300, 190)))
    x = tensor(ordinary("float32"))
    before, seen = torch.get_num_threads(), set()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found = [port.matmul(a, b), port.sum(x), port.exp(x), port.log(x), port.sqrt(x)]
            seen.add(digest({str(i): array(y) for i, y in enumerate(found)}))
    finally:
        torch.set_num_threads(before)
    assert len(seen) == 1


# What torch's users meet: autograd, modes, subclasses, devices.


def everything(a: Any, b: Any) -> list[np.ndarray]:
    """All operations on two matrices."""
    results = [port.matmul(a, b), port.sum(a, 0), port.exp(a), port.log(a), port.sqrt(a)]
    assert all(type(x) is torch.Tensor and not x.requires_grad and x.grad_fn is None for x in results)
    return [array(x) for x in results]


@contextmanager
def default_type(dtype: Any) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


MODES = {
    "inference": lambda: torch.inference_mode(),
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "float64 by default": lambda: default_type(torch.float64),
    "float16 by default": lambda: default_type(torch.float16),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_results_do_not_depend_on_torch_s_modes(mode: str, dtype: str) -> None:
    rng = np.random.default_rng(0)
    for kind in ("normal", "signs", "special"):
        a, b = tensor(numbers(rng, kind, (20, 65), dtype)), tensor(numbers(rng, kind, (65, 30), dtype))
        with MODES[mode]():
            inside = everything(a, b)
        assert all(same_bytes(x, y) for x, y in zip(inside, everything(a, b), strict=True))
    larger = torch.ones(70, 70)
    with torch.inference_mode():
        port.matmul(larger, larger)  # the shared buffers grow within the mode
    assert (port.matmul(larger, larger) == 70).all()


def test_a_result_is_a_constant_to_autograd() -> None:
    a, b = torch.ones(3, 4), torch.ones(4, 2)
    want = everything(a, b)
    for x in (a.clone().requires_grad_(), torch.nn.Parameter(a.clone())):
        assert all(same_bytes(y, z) for y, z in zip(everything(x, b), want, strict=True))
        assert not port.round_to(x, "float32").requires_grad


def test_arguments_stay_as_they_are() -> None:
    rng = np.random.default_rng(0)
    for dtype in ("float16", "float32", "float64"):
        a, b = tensor(numbers(rng, "special", (7, 9), dtype)), tensor(numbers(rng, "special", (9, 7), dtype))
        before = array(a).tobytes(), array(b).tobytes()
        first = port.matmul(a, b).clone()
        everything(a, b)
        port.round_to(a.double(), "bfloat16")
        assert (array(a).tobytes(), array(b).tobytes()) == before
        kept = port.matmul(a, b)
        port.matmul(a * 2, b)  # the shared buffers are written to again
        assert same_bytes(array(kept), array(first))


class Marked(torch.Tensor):
    """A tensor that means more than its numbers."""


BAD = [
    torch.ones(2, 2, dtype=torch.int64),
    torch.ones(2, 2, dtype=torch.bool),
    torch.ones(2, 2, dtype=torch.complex64),
    torch.ones(2, 2).to_sparse(),
    torch.ones(2, 2).as_subclass(Marked),
    np.ones((2, 2), F),
    [[1.0]],
    1.0,
    None,
]


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: f"{type(bad).__name__} {getattr(bad, 'dtype', '')}")
def test_other_types_are_refused_with_their_name(bad: Any) -> None:
    good = torch.ones(2, 2)
    for call in (
        lambda: port.matmul(good, bad),
        lambda: port.matmul(bad, good),
        *(lambda f=f: f(bad) for f in (port.sum, port.sqrt, port.exp, port.log)),
    ):
        with pytest.raises(
            TypeError,
            match=r"expected float32 tensors, .*, found .*(int64|bool|complex|sparse|Marked|ndarray|list|float|None)",
        ):
            call()
    with pytest.raises(TypeError, match="round_to: expected a float32 or float64 tensor, found"):
        port.round_to(bad, "float16")


@pytest.mark.parametrize("name", ["matmul", "sum", "exp", "log"])
def test_an_impossible_format_is_refused(name: str) -> None:
    vector = torch.ones(2)
    arguments = [vector[None], vector[:, None]] if name == "matmul" else [vector]
    for kind in ("float64", "float8", 32, torch.float16):
        with pytest.raises(TypeError, match="kind: expected float16, bfloat16 or float32 for float32 inputs, found"):
            getattr(port, name)(*arguments, kind=kind)
    with pytest.raises(TypeError, match="kind: expected float64 for float64 inputs, found 'float32'"):
        getattr(port, name)(*[x.double() for x in arguments], kind="float32")
    with pytest.raises(TypeError, match=r"found torch\.float32 and torch\.float64"):
        port.matmul(torch.ones(1, 1), torch.ones(1, 1, dtype=torch.float64))
    with pytest.raises(TypeError, match="round_to: kind: expected one of float16, bfloat16"):
        port.round_to(vector, "float8")


def test_shapes_that_do_not_chain_devices_that_differ_and_axes_that_are_not_there_are_refused() -> None:
    for a, b in (((2, 3), (2, 3)), ((3,), (3, 1)), ((2, 2, 2), (2, 2))):
        with pytest.raises(ValueError, match=r"expected shapes \(M, K\) and \(K, N\), found \("):
            port.matmul(torch.ones(a), torch.ones(b))
    with pytest.raises(ValueError, match="expected tensors on one device, found cpu and meta"):
        port.matmul(torch.ones(2, 2), torch.ones(2, 2, device="meta"))
    for axis in (2, -3, (0, 0)):
        with pytest.raises(ValueError, match=r"out of bounds|repeated"):
            port.sum(torch.ones(2, 2), axis)


def test_arithmetic_is_chosen_by_name_and_both_take_the_same_words() -> None:
    assert port.arithmetic_named("reproducible") == port.REPRODUCIBLE
    assert port.arithmetic_named("native").matmul is torch.matmul
    with pytest.raises(ValueError, match="expected 'reproducible' or 'native', found 'fast'"):
        port.arithmetic_named("fast")
    x = torch.ones(3, 4)
    for ops in (port.REPRODUCIBLE, port.NATIVE):
        assert ops.sum(x, axis=0).tolist() == [3, 3, 3, 3]
        assert ops.sum(x, axis=1, keepdims=True).shape == (3, 1)
        assert ops.sum(x).shape == ()
        assert ops.matmul(x, x.T).shape == (3, 3)
        assert [float(f(x[0, 0])) for f in (ops.sqrt, ops.log)] == [1, 0]
    assert port.Arithmetic._fields == reference.Arithmetic._fields


def test_flushed_subnormals_are_refused() -> None:
    port.check_subnormals()
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush subnormal numbers")
    try:
        with pytest.raises(FloatingPointError, match=r"flushes them to zero: found float32 1\.17\d*e-38 / 2 == 0"):
            port.check_subnormals()
    finally:
        torch.set_flush_denormal(False)
    port.check_subnormals()


# What the tests above would catch: PyTorch's own forms, and the port with one fault.


def unlike(stock: Any, ours: Any, why: str = "") -> None:
    """Other bits than ours; the same are a failure, or a skip where machines are known on which they agree."""
    if same_bytes(array(stock), array(ours)):
        if why:
            pytest.skip(f"the stock form has the same bits here: {why}")
        pytest.fail("the stock form has the same bits")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_torch_s_own_square_root_has_other_bits(dtype: str) -> None:
    x = tensor(patterns(dtype))
    unlike(torch.sqrt(x), port.sqrt(x), "this build takes roots from the hardware, not from MKL")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["exp", "log"])
def test_torch_s_own_exp_and_log_have_other_bits(name: str, dtype: str) -> None:
    x = tensor(np.abs(ordinary(dtype, scale=30)))
    unlike(getattr(torch, name)(x), getattr(port, name)(x))


def test_torch_s_own_products_and_sums_have_other_bits_in_float32_and_rounded_from_float64() -> None:
    rng = np.random.default_rng(1)
    a, b = numbers(rng, "normal", (7, 1003)), numbers(rng, "normal", (1003, 7))
    unlike(tensor(a) @ tensor(b), port.matmul(tensor(a), tensor(b)))
    unlike(tensor(a).sum(1), port.sum(tensor(a), 1))
    tie, ones = torch.tensor([[1.0, 2.0**-24, 2.0**-80]]), torch.ones(3, 1)
    unlike((tie.double() @ ones.double()).float(), port.matmul(tie, ones))
    unlike(tie.sum(1, dtype=torch.float64).float(), port.sum(tie, 1))


FUSED = "its kernel for this processor multiplies and adds in two steps (as with ATEN_CPU_CAPABILITY=default)"
STOCK = {
    "lerp": lambda x, y, c: (torch.lerp(x, y, float(c)), x + c * (y - x)),
    "addcmul": lambda x, y, c: (torch.addcmul(x, y, y, value=float(c)), x + (c * y) * y),
    "add with alpha": lambda x, y, c: (torch.add(x, y, alpha=float(c)), x + c * y),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", STOCK)
def test_torch_s_fused_operations_have_other_bits(name: str, dtype: str) -> None:
    x, y = tensor(ordinary(dtype)), tensor(ordinary(dtype)).flip(0)
    unlike(*STOCK[name](x, y, torch.tensor(0.1, dtype=x.dtype)), FUSED)


def test_torch_s_float16_times_a_number_has_other_bits_than_times_a_tensor() -> None:
    x, c = ordinary("float16"), np.float16(0.1)
    assert same_bytes(array(tensor(x) * torch.tensor(0.1, dtype=torch.float16)), x * c)
    unlike(tensor(x) * 0.1, tensor(x * c))


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_torch_s_own_cast_from_float64_to_16_bits_has_other_bits(kind: str) -> None:
    x = tensor(ties(kind))
    unlike(x.to(getattr(torch, kind)), port.round_to(x, kind))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_elementary_operations_have_numpy_s_bits(dtype: str) -> None:
    x, y = patterns(dtype), patterns(dtype)[::-1].copy()
    a, b = tensor(x), tensor(y)
    zero = torch.zeros((), dtype=a.dtype)
    with np.errstate(all="ignore"):
        pairs = [(a + b, x + y), (a - b, x - y), (a * b, x * y), (a / b, x / y)]
        pairs += [(torch.where(a <= 0, zero, a), np.where(x <= 0, x.dtype.type(0), x)), (a.double(), x.astype(float))]
        pairs += [(a.float(), x.astype(F))] + [(a.half(), x.astype(np.float16))] * (dtype != "float64")
    assert all(same_bytes(array(found), want) for found, want in pairs)


def inaccurate(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    """A torch.sqrt that is off by a factor."""
    stock = torch.sqrt
    monkeypatch.setattr(torch, "sqrt", lambda x: stock(x) * factor)


@pytest.mark.parametrize("factor", [1 + 2.0**-40, 1 - 2.0**-40])  # 4000 units in the last place, as MKL's at times
def test_square_roots_are_right_where_torch_s_are_off_by_thousands_of_units(
    factor: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    inaccurate(monkeypatch, factor)
    assert has_right_roots(port_elementary)
    assert not has_right_roots(SimpleNamespace(sqrt=lambda x, kind: torch.sqrt(x)))


def test_the_bound_on_products_holds_whatever_torch_s_square_root_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    inaccurate(monkeypatch, 2.0**-20)
    assert has_right_products(port)
    monkeypatch.setattr(port, "_norms", lambda x, axis: torch.sqrt((x * x).sum(axis)))
    assert not has_right_products(port)


def has_right_casts(module: Any) -> bool:
    arrays = [ties("float16"), ties("bfloat16"), patterns("float32"), patterns("float64")]
    with np.errstate(invalid="ignore"):
        found = [(array(module.round_to(tensor(x), k)), rounding.round_to(x, k)) for x in arrays for k in STORED_IN]
    same = tensor(arrays[0])
    return all(same_bytes(*pair) for pair in found) and module.round_to(same, "float64") is not same


def has_right_exact_sums(module: Any) -> bool:
    """Rows of full width that cancel but for a number at or beside a tie, which many terms surround; singly and all."""
    rng = np.random.default_rng(4)
    half = 0.5 + rng.random((40, 256)) / 2
    rest = [rng.choice(np.array(some), (40, 1)) for some in ([1, -1.5, 2], [2.0**-24, -(2.0**-24)], [0, 1, -1])]
    x = rng.permuted(np.concatenate([half, -half, *rest[:2], rest[2] * 2.0**-80], axis=1), axis=1)
    want = np.array([fixedpoint.total(row, "float32") for row in x.tolist()]).astype(F)
    found = [module.round_sums(tensor(x), "float32"), *(module.round_sums(tensor(row[None]), "float32") for row in x)]
    return same_bytes(array(found[0]), want) and same_bytes(array(torch.cat(found[1:])), want)


def has_right_roots(module: Any) -> bool:
    def right(x: np.ndarray) -> bool:
        return same_bytes(array(module.sqrt(tensor(x), x.dtype.name)), np.sqrt(x))

    with np.errstate(invalid="ignore"):
        return all(right(x) for dtype in ("float32", "float64") for x in (patterns(dtype), near_squares(dtype)))


def has_right_functions(module: Any) -> bool:
    def right(name: str, x: np.ndarray) -> bool:
        found = getattr(module, name)(tensor(x), x.dtype.name)
        return same_bytes(array(found), getattr(reference, name)(x))

    undecided = np.array([*SPECIAL, *map(float.fromhex, UNDECIDED["exp"] + UNDECIDED["log"])], F)
    wide = np.random.default_rng(0).uniform(-760, 720, 20_000)
    arrays = [patterns("float32"), ordinary("float32", scale=30), undecided, patterns("float64"), wide]
    return all(right(name, x) for x in arrays for name in ("exp", "log"))


def has_right_products(module: Any) -> bool:
    """Terms at and beside a tie, among others that cancel; zeros, infinities and NaN; and long sums."""
    rng = np.random.default_rng(0)
    noise = (rng.standard_normal((40, 40)) * 64).astype(F)
    tie = np.tile(np.array([1, 2.0**-24, 2.0**-53], F), (40, 1)) * rng.choice(np.array([-1, 1], F), (40, 1))
    near = rng.permuted(np.concatenate([tie, noise, -noise], axis=1), axis=1)
    small = np.append([1, 2.0**-24, -993 * 2.0**-53], np.full(997, 2.0**-53)).astype(F)[None]  # lost beside the 1
    pairs = [(near, np.ones((83, 2), F)), (small, np.ones((1000, 1), F))]
    for kind, k in product(("special", "subnormal", "huge", "signs", "relu", "cancelling"), (20, 64)):
        a, b = numbers(rng, kind, (40, k)), numbers(rng, kind, (k, 40))
        if kind == "cancelling":
            cancelled(a, b)
            b[k // 2] = np.nextafter(b[k // 2], F(9))
        pairs.append((a, b))
    never = (
        np.array([[1e-30, np.inf, 0.0], [1.0, 0.0, 0.0]], F),
        np.array([[-1e-30, 1, 1], [0, 1, 1], [1, 1, np.inf]], F),
    )
    pairs.append(never)  # underflow, and all that IEEE 754 says of infinities
    return all(
        same_bytes(array(module.matmul(tensor(a), tensor(b))), reference.matmul(a, b))
        and same_bytes(array(module.sum(tensor(a), 1)), reference.sum(a, 1))
        for a, b in pairs
    )


def beside(x: torch.Tensor) -> torch.Tensor:
    """float32 cut off, without the last bit that says so."""
    near = x.float()
    return (near.view(torch.int32) - (near.abs() > x.abs()).int()).view(torch.float32)


def without_bound(name: str) -> Any:
    """A certificate whose interval is a point."""
    real = getattr(port_elementary, name)
    return lambda upper, bound, kind: real(upper, 0.0, kind)


Law = Callable[[Any], bool]
HOMES = {
    has_right_casts: port_rounding,
    has_right_exact_sums: port_rounding,
    has_right_roots: port_elementary,
    has_right_functions: port_elementary,
    has_right_products: port,
}
FAULTS: list[tuple[Law, str, Any]] = [
    (has_right_casts, "round_to", lambda x, kind: x.to(port_rounding.STORAGE[kind], copy=True)),
    (has_right_casts, "cast", lambda x, kind, real=port_rounding.cast: x if kind == "float64" else real(x, kind)),
    (has_right_casts, "_odd_float32", lambda x: x.float()),
    (has_right_casts, "_odd_float32", beside),
    (has_right_exact_sums, "round_sums", lambda x, kind: x.sum(1).float()),
    (has_right_exact_sums, "_two_sum", lambda a, b: (a + b, torch.zeros_like(a))),
    (has_right_exact_sums, "bits_to_count", lambda terms: -8),
    (has_right_exact_sums, "fsum", sum),
    (has_right_roots, "_sqrt_wide", lambda a: port_elementary.root(a)),
    (has_right_roots, "root", lambda x, real=port_elementary.root: real(x) * (1 + 2.0**-24)),
    (has_right_functions, "exp", lambda x, kind: torch.exp(x)),
    (has_right_functions, "log", lambda x, kind: torch.log(x)),
    (has_right_functions, "_settle", without_bound("_settle")),
    (has_right_functions, "_edge_of_log", lambda a: a),
    (has_right_products, "matmul", torch.matmul),
    (has_right_products, "sum", torch.sum),
    (has_right_products, "UNIT", 2.0**-60),
    (has_right_products, "_place_nonfinite", lambda clean, a, b: clean),
    (has_right_products, "_finite_part", lambda a: a),
]


@pytest.mark.parametrize("law", HOMES)
def test_the_port_without_a_fault_passes_what_catches_faults(law: Law) -> None:
    assert law(HOMES[law])


@pytest.mark.parametrize(("law", "name", "wrong"), FAULTS, ids=[f"{name}-{i}" for i, (_, name, _) in enumerate(FAULTS)])
def test_a_port_with_one_fault_is_caught(law: Law, name: str, wrong: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HOMES[law], name, wrong)
    try:
        holds = law(HOMES[law])
    except (ValueError, OverflowError, RuntimeError):  # of a number that should not have come so far
        holds = False
    assert not holds


def test_tensors_without_numbers_of_their_own_are_refused_in_words() -> None:
    negated = torch.complex(torch.ones(3), torch.ones(3)).conj().imag
    with pytest.raises(TypeError, match=r"found a negated tensor \(use x\.resolve_neg\(\)\)"):
        port.exp(negated)
    assert port.exp(negated.resolve_neg()).tolist() == port.exp(-torch.ones(3)).tolist()
    with pytest.raises(TypeError, match="expected tensors that hold numbers, found one on the device 'meta'"):
        port.sum(torch.ones(3, device="meta"))
