"""What a run left: its leaves at every step, the samples it got, and what else was noted; without torch.

A leaf remembers a digest of all bytes and up to 256 elements, so that two runs are compared without keeping either.
"""

import base64
import json
import math
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from torch_port.audit.judge.findings import Difference, Plain

SAMPLED = 256  # elements remembered of a tensor


class Leaf(NamedTuple):
    """What is remembered of a value."""

    kind: str
    digest: str
    dtype: str  # of a tensor or array; else the type's name
    shape: tuple[int, ...] = ()
    device: str = ""
    value: Plain = None  # a small plain value itself, or a description
    sample: str = ""  # base64 of the sampled elements as float64


def leaf_from_plain(values: list[Any]) -> Leaf:
    """The leaf that was written to JSON as a list."""
    return Leaf(values[0], values[1], values[2], tuple(values[3]), *values[4:])


def difference(step: int, path: str, a: Leaf | None, b: Leaf | None) -> Difference:
    """How two leaves that are not equal differ; either may be missing."""
    if a is None or b is None:
        return Difference(step, path, _describe(a), _describe(b), math.inf)
    if (a.dtype, a.shape, a.device) != (b.dtype, b.shape, b.device):
        numbers = (
            not a.shape and not b.shape and isinstance(a.value, (int, float)) and isinstance(b.value, (int, float))
        )
        apart = abs(float(b.value or 0) - float(a.value or 0)) if numbers else math.inf
        if numbers and a.device and b.device:  # their values may be equal
            return Difference(step, path, f"{a.value} in {a.dtype}", f"{b.value} in {b.dtype}", apart)
        return Difference(step, path, _describe(a), _describe(b), apart)
    if not a.sample or not b.sample:
        return Difference(step, path, _describe(a), _describe(b), math.inf)
    x, y = _decode_sample(a.sample), _decode_sample(b.sample)
    with np.errstate(invalid="ignore", over="ignore"):
        apart_all = np.where((x == y) | (np.isnan(x) & np.isnan(y)), 0.0, np.abs(y - x))
    apart_all = np.where(np.isnan(apart_all), np.inf, apart_all)
    worst = int(np.argmax(apart_all)) if apart_all.size else 0
    if not apart_all.size or apart_all[worst] == 0:
        return Difference(step, path, _describe(a), "other elements than the sampled ones", 0.0)
    p, q = float(x[worst]), float(y[worst])
    whole = "int" in a.dtype or a.dtype == "bool"
    expected, found = (int(p), int(q)) if whole and math.isfinite(p) and math.isfinite(q) else (p, q)
    if isinstance(a.value, bool) and isinstance(b.value, bool):
        expected, found = a.value, b.value
    return Difference(step, path, expected, found, float(apart_all[worst]), ulps_between(p, q, a.dtype))


def relative_distance(found: Difference, a: Leaf | None) -> float:
    """A difference as a share of the leaf's largest sampled element, between 0 and 1."""
    if not math.isfinite(found.distance) or a is None or not a.sample:
        return 1.0
    largest = float(np.max(np.abs(np.nan_to_num(_decode_sample(a.sample)))))
    return min(1.0, found.distance / largest) if largest else 1.0


def ulps_between(x: float, y: float, dtype: str) -> int | None:
    """How many numbers of a floating-point type apart two values are; None for other types.

    Example:
        >>> ulps_between(1.0, 1.0 + 2**-23, "float32"), ulps_between(1.0, 1.0078125, "bfloat16")
        (1, 1)
    """
    widths = {"float16": np.int16, "float32": np.int32, "float64": np.int64, "float": np.int64, "bfloat16": np.int32}
    if dtype not in widths or not (math.isfinite(x) and math.isfinite(y)):
        return None
    float_type = {"float": "float64", "bfloat16": "float32"}.get(dtype, dtype)
    places = []
    for value in (x, y):
        bits = int(np.array(value, float_type).view(widths[dtype]))
        places.append(bits if bits >= 0 else int(np.iinfo(f"i{np.dtype(widths[dtype]).itemsize}").min) - bits)
    return abs(places[1] - places[0]) >> (16 if dtype == "bfloat16" else 0)


def encode_sample(numbers: "np.ndarray[Any, Any]") -> str:
    """The sampled numbers as text."""
    return base64.b64encode(numbers[:SAMPLED].astype("<f8").tobytes()).decode()


def _decode_sample(sample: str) -> "np.ndarray[Any, Any]":
    return np.frombuffer(base64.b64decode(sample), dtype="<f8")


def _describe(a: Leaf | None) -> Plain:
    if a is None:
        return "nothing"
    if a.value is not None or a.dtype == "NoneType":
        return a.value if a.value is not None else "None"
    return (
        f"{a.dtype} {list(a.shape)}" + (f" on {a.device}" if a.device not in ("", "cpu") else "")
        if a.shape
        else a.dtype
    )


class Delivery(NamedTuple):
    """One batch as the loop got it, or the end of an iterator (`ids` is None and `digest` empty)."""

    loader: str
    iterator: int  # its number in the process, from 0
    ids: Any
    digest: str


class Record:
    """A record read back: the leaves at each step, the first of a resumed run being those right after the load."""

    def __init__(self, path: str) -> None:
        whole = json.loads(Path(path).read_text())
        self.at: dict[int, dict[str, Leaf]] = {}
        self.groups: dict[str, str] = whole["groups"]
        self.facts: dict[str, Any] = whole["facts"]
        self.deliveries = {int(step): [Delivery(*one) for one in found] for step, found in whole["deliveries"].items()}
        leaves: dict[str, Leaf] = {}
        for step, changed, gone in whole["moments"]:
            leaves = {path: one for path, one in leaves.items() if path not in set(gone)}
            leaves.update({path: leaf_from_plain(one) for path, one in changed.items()})
            self.at[step] = leaves


def batch_file(folder: str, step: int, place: int) -> Path:
    """Where the batch that was delivered in this place of a step is kept."""
    return Path(folder, f"{step}-{place}.pt")


def rest_of_iterators(record: Record, stop: int) -> dict[str, dict[str, Any]]:
    """For each loader that was in the middle of its data after a stop: what its iterator still had to issue.

    An iterator that the loop left there, and never came back to, had nothing to issue.

    Args:
        record: of the uninterrupted run.
        stop: the step after which it is stopped.

    Returns:
        Loader -> {"ids": indices of each batch still to come, "end": what its sampler draws when it ends}.
    """
    latest: dict[str, tuple[int, bool]] = {}
    for step in sorted(record.deliveries):
        if step <= stop:
            latest.update({one.loader: (one.iterator, one.digest == "") for one in record.deliveries[step]})
    rest = {}
    for name, (number, ended) in latest.items():
        later = [
            one
            for step in sorted(record.deliveries)
            if step > stop
            for one in record.deliveries[step]
            if one.iterator == number
        ]
        if later and not ended:
            ids = [one.ids for one in later if one.digest]
            at, draws = record.facts.get("ends", {}).get(str(number), (0, []))
            rest[name] = {"ids": ids, "end": draws if at > stop else []}
    return rest


PLACE_IN_GROUPS = re.compile(r"(.*)\.param_groups\[(\d+)\]\.params\[(\d+)\]")

DATA = ".data"  # the memory of a tensor: two may share it, and be two tensors all the same


def join(path: str, name: str) -> str:
    """The path of what has a name under a path; either may be empty."""
    return f"{path}.{name}" if path and name else path or name


def place_in_groups(group: int, place: int) -> str:
    """Where an optimizer holds a tensor that it trains, as the end of a path."""
    return f".param_groups[{group}].params[{place}]"
