"""A fixed corpus of products, sums and functions, to which any implementation can be held on any machine.

The inputs are data, `corpus.npz`, and so are the digests of the correctly rounded results, `corpus.json`: one for each
case and one over all (`numpy_ref.proof.equivalence.digest` says how). `cases` lists what is computed of what. `results`
hands the inputs to an implementation, an object with `matmul`, `sum`, `exp`, `log` and `sqrt`; `Port` makes one of the
functions of torch_port.

    python -m parity_tests.arithmetic.corpus                compute, compare with the record; 0 when they agree
    python -m parity_tests.arithmetic.corpus --json [torch_port]   results, native bits and the demo's run
    python -m parity_tests.arithmetic.corpus --regenerate REASON   write new inputs and a new record
"""

import json
import sys
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from numpy_ref.arithmetic import operations as arithmetic
from numpy_ref.cli import demo
from numpy_ref.data import load_data
from numpy_ref.proof.equivalence import digest
from parity_tests.strategies import numbers

INPUTS, RECORD = Path(__file__).with_name("corpus.npz"), Path(__file__).with_name("corpus.json")
TERMS = (1, 7, 64, 129, 1003)  # below, at and beside the widths of vector registers and of unrolled loops
KINDS = {  # of each type: the numbers, as in `strategies.numbers`, and how many of them a row has
    "float32": (
        ("normal", "relu", "signs", "cancelling", "wide", "subnormal", "huge", "ties", "bits", "special"),
        1003,
    ),
    "float16": (("normal", "relu", "cancelling", "wide", "bits", "special"), 129),
    "float64": (("normal", "cancelling", "wide", "special"), 129),
}
FINITE = [kind for kind in KINDS["float32"][0] if kind != "special"]
MODEST = ["normal", "relu", "signs", "cancelling", "ties"]  # no product of these leaves float32's range
FORMATS = {"float32": ("float32", "bfloat16", "float16"), "float16": ("float16", "float32"), "float64": ("float64",)}

Inputs = dict[str, np.ndarray]


class Case(NamedTuple):
    """One operation on inputs, its result in one format."""

    name: str
    operation: str
    arrays: tuple[np.ndarray, ...]
    kind: str
    axis: int | None = None  # of a sum


def inputs() -> Inputs:
    """The committed arrays by name, `float32/normal/a` of shape (4, 1003) and `float32/normal/b` of shape (1003, 3)."""
    with np.load(INPUTS) as file:
        return {name: file[name] for name in file.files}


def make_inputs(seed: int = 0) -> Inputs:
    """Arrays such as the committed ones, which were drawn so once."""
    rng, made = np.random.default_rng(seed), {}
    for dtype, (kinds, terms) in KINDS.items():
        for kind in kinds:
            a, b = numbers(rng, kind, (4, terms), dtype), numbers(rng, kind, (terms, 3), dtype)
            if kind == "cancelling":  # each term and its negative, but for the last bit of a few
                a[:, 1::2], b[1::2] = a[:, :-1:2], -b[:-1:2]
                b[1::32] = np.nextafter(b[1::32], b.dtype.type(9))
            made |= {f"{dtype}/{kind}/a": a, f"{dtype}/{kind}/b": b}
    return made


def cases(arrays: Inputs) -> Iterator[Case]:
    """Every case of the corpus."""
    for dtype, (kinds, longest) in KINDS.items():
        for out in FORMATS[dtype]:
            for kind in kinds:
                a, b = arrays[f"{dtype}/{kind}/a"], arrays[f"{dtype}/{kind}/b"]
                where = f"{dtype}/{kind}/{out}"
                for terms in (n for n in TERMS if n <= longest):
                    yield Case(f"matmul/{where}/{terms}", "matmul", (a[:, :terms], b[:terms]), out)
                    yield Case(f"sum/{where}/{terms}", "sum", (a[:, :terms],), out, 1)
                yield Case(f"sum/{where}/columns", "sum", (a,), out, 0)
                yield Case(f"sum/{where}/all", "sum", (a,), out)
                yield Case(f"dot/{where}", "dot", (a[0], b[:, 0]), out)
                for name in ("exp", "log"):
                    yield Case(f"{name}/{where}", name, (a,), out)
                if out == dtype:
                    yield Case(f"sqrt/{where}", "sqrt", (a,), out)
    # Large enough for a BLAS to use threads:
    rows = np.concatenate([arrays[f"float32/{kind}/a"] for kind in FINITE])
    rows = np.concatenate([rows, *(arrays[f"float32/{kind}/b"].T for kind in FINITE)])
    yield Case("matmul/float32/together", "matmul", (rows, np.ascontiguousarray(rows[::-1].T)), "float32")
    yield Case("sum/float32/together", "sum", (rows,), "float32")
    a, b = (np.concatenate([arrays[f"float32/{kind}/{x}"].ravel()[:3009] for kind in MODEST]) for x in "ab")
    yield Case("dot/float32/together", "dot", (a, b), "float32")
    yield Case("dot/float64/together", "dot", (a.astype(np.float64), b.astype(np.float64)), "float64")


def results(implementation: Any, arrays: Inputs) -> dict[str, np.ndarray]:
    """The result of each case in an implementation, whose functions take `kind` as those of `arithmetic` do."""
    found = {}
    for name, operation, given, kind, axis in cases(arrays):
        function = getattr(implementation, operation, None) or partial(inner_product, implementation)
        if operation == "sqrt":
            found[name] = function(*given)
        elif operation == "sum":
            found[name] = function(*given, axis, kind=kind)
        else:
            found[name] = function(*given, kind=kind)
    return found


def inner_product(implementation: Any, a: np.ndarray, b: np.ndarray, *, kind: str) -> np.ndarray:
    """The cases of dot: a row times a column. Native ones are the framework's own of two vectors."""
    product: np.ndarray = implementation.matmul(a[None, :], b[:, None], kind=kind)
    return product.reshape(())


def rounded(x: np.ndarray, kind: str) -> np.ndarray:
    """`round_to` for every type: float16 is exact in float32."""
    return arithmetic.round_to(x.astype(np.float32) if x.dtype == np.float16 else x, kind)


class Port:
    """Functions of tensors, such as those of `torch_port.arithmetic`, on arrays; bfloat16 results come in float32."""

    def __init__(self, operations: Any) -> None:
        self.operations = operations

    def __getattr__(self, name: str) -> Any:
        function = getattr(self.operations, name)
        return lambda *given, **settings: as_array(function(*map(as_tensor, given), **settings))


def as_tensor(given: Any) -> Any:
    """An array as a tensor on its memory, strides included; anything else, such as an axis, as it is."""
    import torch  # here, since the reference's corpus needs none

    if not isinstance(given, np.ndarray):
        return given
    return torch.from_numpy(given.copy() if any(stride < 0 for stride in given.strides) else given)


def as_array(tensor: Any) -> np.ndarray:
    """A tensor as an array; NumPy has no bfloat16, and the reference carries it in float32."""
    array: np.ndarray = (tensor.float() if "bfloat16" in str(tensor.dtype) else tensor).numpy()
    return array


class Native:
    """A framework's own operations in the type of their inputs, brought to the format asked for."""

    def __init__(self, operations: Any) -> None:
        self.operations = operations

    def __getattr__(self, name: str) -> Any:
        function = getattr(self.operations, "matmul" if name == "dot" else name)

        def brought(*given: Any, kind: str | None = None) -> np.ndarray:
            found = np.asarray(function(*given))
            return found if kind is None else rounded(found, kind)

        return brought


def implementations(package: str) -> tuple[Any, Any]:
    """A package's arithmetic on arrays, reproducible and native."""
    module = import_module(f"{package}.arithmetic")
    if package == "torch_port":
        return Port(module), Native(Port(module.NATIVE))
    return module, Native(module.NATIVE)


def stock(arrays: Inputs) -> dict[str, np.ndarray]:
    """Functions of torch that the port avoids, since their bits depend on the instruction set or the threads."""
    x = as_tensor(arrays["float32/normal/a"])
    found = {"lerp": x.lerp(x.flip(0), 0.3), "log_softmax": x.log_softmax(1), "long sum": x.repeat(300, 1).sum()}
    return {f"stock {name}/float32": tensor.numpy() for name, tensor in found.items()}


def case_digests(found: dict[str, np.ndarray]) -> dict[str, str]:
    """The first quarter of the digest of each result: enough to say which one differs."""
    return {name: digest({name: array})[:16] for name, array in found.items()}


def record() -> dict[str, Any]:
    """What is committed: the reason it was last made anew, the digests of the inputs, of all results, and of each."""
    return dict(json.loads(RECORD.read_text()))


def computed(implementation: Any = arithmetic) -> dict[str, Any]:
    """The digests of this process, as `record` has them."""
    arrays = inputs()
    found = results(implementation, arrays)
    return {"inputs": digest(arrays), "results": digest(found), "cases": case_digests(found)}


def report(package: str) -> dict[str, Any]:
    """What this process computes by a package: the corpus, the same in native arithmetic, and the demo's run."""
    impl, data, arrays = import_module(package), load_data("digits"), inputs()
    reproducible, native = implementations(package)
    with np.errstate(all="ignore"):
        found = results(native, arrays) | (stock(arrays) if package == "torch_port" else {})
    run = impl.train_n_steps(impl.init_run(demo.CONFIG, data), data, demo.STEPS)
    return computed(reproducible) | {"native": case_digests(found), "demo": digest(impl.snapshot(run))}


def differences(found: dict[str, Any]) -> list[str]:
    """What `computed`, or a report, has otherwise than the record: names of cases and of the digests over all."""
    recorded = record()
    wrong = [name for name, value in recorded["cases"].items() if found["cases"].get(name) != value]
    wrong += [part for part in ("inputs", "results") if found[part] != recorded[part]]
    return wrong + (["demo"] if found.get("demo", demo.DIGEST) != demo.DIGEST else [])


def regenerate(reason: str) -> None:
    """Draw inputs and record the digests of the correctly rounded results."""
    np.savez_compressed(INPUTS, allow_pickle=False, **make_inputs())
    RECORD.write_text(json.dumps({"reason": reason} | computed(), indent=1) + "\n")


def main(words: list[str]) -> int:
    if words in (["--json"], ["--json", "torch_port"]):
        sys.stdout.write(json.dumps(report(words[1] if words[1:] else "numpy_ref")) + "\n")
        return 0
    if len(words) == 2 and words[0] == "--regenerate" and words[1].strip():
        regenerate(words[1])
    elif words:
        asked = not {"-h", "--help"}.isdisjoint(words)
        usage = "usage: python -m parity_tests.arithmetic.corpus [--json [torch_port] | --regenerate REASON]\n"
        (sys.stdout if asked else sys.stderr).write(usage + (f"\n{__doc__}" if asked else ""))
        return 0 if asked else 2
    found = computed()
    wrong = differences(found)
    sys.stdout.write(
        f"{len(found['cases'])} cases, digest {found['results']}: {'DIFFERS' if wrong else 'as recorded'}\n"
    )
    sys.stdout.writelines(f"  {name} differs\n" for name in wrong)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
