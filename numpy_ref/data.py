"""Data sets in memory, the order of an epoch, and the position in it.

Sizes: N training samples, M test samples, D inputs, C classes, B indices.

A data set is checked once, when it is made, and read-only from then on; its fingerprint goes into every checkpoint.
Order and position are plain data too: the epoch's order is a function of the order stream's state at the start of the
epoch, and the position counts samples that the training loop has consumed, not those that some loader has already
fetched. Nothing here remembers anything between calls.
"""

import hashlib
import json
import math
import os
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from numpy_ref.checks import whole_number
from numpy_ref.rng import StreamState, draw_permutation, generator_from, stream_state

_TEST_EVERY = 5  # every fifth sample is held out
_ARRAY_PAIRS = (("inputs", "labels"), ("x", "y"))  # names in an .npz file, the first pair present wins
_SHOWN = 3  # faulty lines of a .csv file that a message quotes
_LARGEST_CLASSES = 2**31  # a label beyond this is a measurement, not a class


class Dataset(NamedTuple):
    """Training and test samples, read-only.

    Attributes:
        inputs: (N, D) float32, finite.
        labels: (N,) int64, each in 0..C-1.
        test_inputs: (M, D) float32, finite.
        test_labels: (M,) int64, each in 0..C-1.
        classes: C, at least 2.
        fingerprint: SHA-256 in hex over the names, types, shapes and bytes of the four arrays, and C.

    Resume: a run resumed on other data is another experiment; the fingerprint in the checkpoint tells.
    """

    inputs: npt.NDArray[np.float32]
    labels: npt.NDArray[np.int64]
    test_inputs: npt.NDArray[np.float32]
    test_labels: npt.NDArray[np.int64]
    classes: int
    fingerprint: str


def init_dataset(inputs: npt.ArrayLike, labels: npt.ArrayLike, *, classes: int | None = None) -> Dataset:
    """Check samples and labels, convert them, and hold every fifth sample out for testing.

    sample i is for testing when i mod 5 = 4, otherwise for training

    Args:
        inputs: (N + M, D) numbers, at least 5 rows. Rounded to float32, which must leave them finite.
        labels: (N + M,) integers in 0..C-1; floats pass when each is a whole number.
        classes: C; by default the largest label plus one, which must not exceed the number of samples.

    Returns:
        The data set, with copies of what was given, in the order given.

    Raises:
        ValueError: Something else was given; the message says where, how often, what was expected and what was found.

    Example:
        >>> data = init_dataset([[0.5], [1], [2], [3], [4]], [0, 1, 0, 1, 0])
        >>> data.inputs.shape, data.test_labels, data.classes
        ((4, 1), array([0]), 2)
    """
    features = _checked_inputs(inputs)
    end = _LARGEST_CLASSES if classes is None else whole_number("classes", classes, 2, _LARGEST_CLASSES + 1)
    targets = _checked_labels(labels, len(features), end)
    count = int(targets.max()) + 1 if classes is None else end
    if count < 2:
        raise ValueError("labels: expected at least 2 classes, found only the label 0. Add samples of another class.")
    if classes is None and count > len(targets):
        raise ValueError(
            f"labels: expected at most as many classes as the {len(targets)} samples, found the label {count - 1}. "
            "Number the classes from 0; if that label is meant, give classes."
        )
    held_out = np.arange(len(features)) % _TEST_EVERY == _TEST_EVERY - 1
    arrays: dict[str, npt.NDArray[Any]] = {
        "inputs": features[~held_out],
        "labels": targets[~held_out],
        "test_inputs": features[held_out],
        "test_labels": targets[held_out],
    }
    for array in arrays.values():
        array.flags.writeable = False
    return Dataset(**arrays, classes=count, fingerprint=_fingerprint(arrays, count))


def load_data(source: str | os.PathLike[str]) -> Dataset:
    """Load the bundled digits, or samples from a file of the user's.

    "digits":  1,797 images of 8 x 8 pixels, each pixel divided by 16; 10 classes
    FILE.npz:  arrays `inputs` and `labels`, or `x` and `y`; others are ignored
    FILE.csv:  one sample a row, its class in the last column; a first row of names is recognised and skipped

    Args:
        source: one of these. The first row of a .csv file counts as names when no field of it is a number, or when all
            but the last only count the columns.

    Returns:
        The data set that `init_dataset` makes of the samples, in the file's order.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file is of another kind, damaged, or holds what `init_dataset` refuses; the message names the
            file and, for .csv, the lines. Nothing in a file is ever unpickled.

    Source: Alpaydin and Kaynak 1998, Optical Recognition of Handwritten Digits (CC BY 4.0), its test part.

    Example:
        >>> data = load_data("digits")
        >>> data.inputs.shape, data.test_inputs.shape, data.classes
        ((1438, 64), (359, 64), 10)
    """
    name = os.fspath(source)
    if name == "digits":
        with np.load(Path(__file__).with_name("digits.npz")) as arrays:
            return init_dataset(arrays["pixels"].astype(np.float32) / np.float32(16), arrays["labels"])
    path = Path(name)
    readers = {".npz": _read_npz, ".csv": _read_csv}
    if path.suffix.lower() not in readers:
        raise ValueError(f"data source: expected 'digits', FILE.npz or FILE.csv, found {name!r}.")
    if not path.exists():
        raise FileNotFoundError(f"{path}: expected a data file, found nothing there. Is the path right?")
    if not path.is_file():
        raise ValueError(f"{path}: expected a data file, found something that is not a file.")
    try:
        return init_dataset(*readers[path.suffix.lower()](path))
    except ValueError as fault:
        raise ValueError(f"{path}: {fault}") from fault


class Position(NamedTuple):
    """Where the training loop stands.

    Attributes:
        epoch: full passes over the training samples completed, from 0.
        consumed: training samples consumed in this epoch, 0..N-1. The end of an epoch is the start of the next.

    Resume: without it the run starts the epoch again, and trains twice on its head and never on its tail.
    """

    epoch: int
    consumed: int


def epoch_order(order_state: StreamState, n: int) -> tuple[npt.NDArray[np.int64], StreamState]:
    """Draw one epoch's order from the state that the order stream has at the start of the epoch.

    Args:
        order_state: the stream at the start of the epoch; not changed. A checkpoint holds it until the epoch ends.
        n: N, the number of training samples.

    Returns:
        The order, a permutation (N,) int64, and the stream's state at the start of the next epoch.

    Raises:
        ValueError: The state or the number is not valid; see `generator_from` and `draw_permutation`.

    Resume: calling it again after a resume inside the epoch gives the same order. With the stream at its start instead,
        the run repeats the order of epoch 0.

    Mirror: bitwise, `torch.randperm(n, generator=g)`.

    Example:
        >>> from numpy_ref.rng import init_stream
        >>> order, next_state = epoch_order(init_stream(42, "order"), 6)
        >>> order
        array([1, 5, 4, 2, 3, 0])
    """
    generator = generator_from(order_state)
    return draw_permutation(generator, n), stream_state(generator)


def window_indices(order: npt.NDArray[np.int64], consumed: int, size: int) -> npt.NDArray[np.int64]:
    """Take the next samples of an epoch: at most `size`, fewer at its end.

    Args:
        order: (N,) the epoch's order.
        consumed: samples consumed in this epoch, 0..N-1.
        size: samples wanted, at least 1.

    Returns:
        (B,) int64, 1 <= B <= size, a copy.

    Raises:
        ValueError: The epoch is over, or a number is out of range.

    Example:
        >>> window_indices(np.array([2, 0, 1]), 2, 5)
        array([1])
    """
    start = whole_number("consumed", consumed, 0, len(order))
    return order[start : start + whole_number("size", size, 1, 2**63)].copy()


def advance(
    position: Position, order_state: StreamState, n: int, count: int, next_state: StreamState
) -> tuple[Position, StreamState]:
    """Consume `count` samples; the end of an epoch is at once the start of the next.

    consumed + count < n:  (epoch, consumed + count), order_state
    consumed + count = n:  (epoch + 1, 0), next_state

    Args:
        position: before the samples were consumed.
        order_state: the order stream at the start of this epoch.
        n: N, the number of training samples.
        count: samples consumed, at least 1 and no more than this epoch has left.
        next_state: the order stream at the start of the next epoch, from `epoch_order`.

    Returns:
        The new position, and the order stream's state at the start of its epoch: the two that a checkpoint holds.

    Raises:
        ValueError: The position lies outside the epoch, or so many samples are not left in it.

    Resume: one point in time has one representation, so a save after the last batch neither skips nor repeats an epoch.

    Example:
        >>> from numpy_ref.rng import init_stream
        >>> start = init_stream(42, "order")
        >>> order, after = epoch_order(start, 6)
        >>> advance(Position(0, 4), start, 6, 2, after)[0]
        Position(epoch=1, consumed=0)
    """
    epoch = whole_number("position.epoch", position.epoch, 0, 2**63)
    consumed = whole_number("position.consumed", position.consumed, 0, n)
    consumed += whole_number("count", count, 1, n - consumed + 1)
    return (Position(epoch + 1, 0), next_state) if consumed == n else (Position(epoch, consumed), order_state)


def _checked_inputs(inputs: npt.ArrayLike) -> npt.NDArray[np.float32]:
    """The inputs as a new float32 array, or a ValueError that says what is wrong with them."""
    raw = _plain_array("inputs", inputs)
    if raw.ndim != 2 or raw.shape[0] < _TEST_EVERY or raw.shape[1] < 1:
        raise ValueError(f"inputs: expected 2 axes, at least 5 samples by 1 input, found shape {raw.shape}.")
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is counted below
        features: npt.NDArray[np.float32] = np.array(raw, dtype=np.float32, order="C")
    bad = ~np.isfinite(features)
    if bad.any():
        row, column = (int(k) for k in np.unravel_index(int(bad.argmax()), bad.shape))
        raise ValueError(
            f"inputs: expected numbers that are finite in float32, found {int(bad.sum())} of {bad.size} that are not; "
            f"the first is {raw[row, column].item()!r} in row {row}, column {column} (both counted from 0). "
            "Clean or rescale the data."
        )
    return features


def _checked_labels(labels: npt.ArrayLike, n: int, end: int) -> npt.NDArray[np.int64]:
    """The labels, each below `end`, as a new int64 array, or a ValueError that says what is wrong with them."""
    raw = _plain_array("labels", labels)
    if raw.shape != (n,):
        raise ValueError(f"labels: expected one for each of the {n} rows of inputs, found shape {raw.shape}.")
    if raw.dtype.kind == "f":
        raw = raw.astype(np.float64)
        bad = ~((raw >= 0) & (raw < float(end)) & (raw == np.floor(raw)))  # NaN fails each of these
    else:
        bad = (raw < 0) | (raw >= end)
    if bad.any():
        row = int(bad.argmax())
        raise ValueError(
            f"labels: expected whole numbers from 0 to {end - 1}, found {int(bad.sum())} of {n} that are not; "
            f"the first is {raw[row].item()!r} in row {row} (counted from 0). Number the classes from 0."
        )
    return raw.astype(np.int64)


def _plain_array(where: str, values: npt.ArrayLike) -> npt.NDArray[Any]:
    """Values as an array of booleans, integers or floats, or a ValueError."""
    if isinstance(values, np.ma.MaskedArray):
        raise ValueError(f"{where}: expected plain numbers, found a masked array. Fill or drop what is masked first.")
    try:
        array = np.asarray(values)
    except ValueError as fault:
        raise ValueError(f"{where}: expected rows of equal length, found another nesting ({fault}).") from None
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{where}: expected real numbers, found an array of type {array.dtype}. Convert it first.")
    return array


def _fingerprint(arrays: dict[str, npt.NDArray[Any]], classes: int) -> str:
    """SHA-256 over a JSON line of names, types, shapes and the number of classes, then the bytes of each array."""
    layout = [[name, array.dtype.newbyteorder("<").str, list(array.shape)] for name, array in arrays.items()]
    digest = hashlib.sha256(json.dumps({"arrays": layout, "classes": classes}).encode("ascii") + b"\n")
    for array in arrays.values():
        digest.update(np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).tobytes())
    return digest.hexdigest()


def _read_npz(path: Path) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Inputs and labels of an .npz file, never unpickling anything."""
    import zipfile  # slow, and needed here alone

    try:
        with zipfile.ZipFile(path) as members:
            names = [name.removesuffix(".npy") for name in members.namelist()]
    except (zipfile.BadZipFile, NotImplementedError) as fault:
        raise ValueError(f"expected an .npz file, found no readable zip archive ({fault}).") from None
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"expected every name once, found {', '.join(map(repr, twice))} more than once.")
    pair = next((pair for pair in _ARRAY_PAIRS if set(pair) <= set(names)), None)
    if pair is None:
        found = ", ".join(map(repr, sorted(names))) or "none"
        raise ValueError(f"expected arrays named 'inputs' and 'labels', or 'x' and 'y', found {found}.")
    arrays = []
    for name in pair:
        try:
            with np.load(path, allow_pickle=False) as file:
                arrays.append(file[name])
        except (ValueError, OSError, EOFError, MemoryError, RuntimeError, zipfile.BadZipFile, zlib.error) as fault:
            raise ValueError(f"array {name!r}: expected plain numbers, found what cannot be read ({fault}).") from None
    return arrays[0], arrays[1]


def _read_csv(path: Path) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Inputs and labels of a .csv file; every faulty line is counted, the first few are quoted."""
    import csv

    rows: list[npt.NDArray[np.float64]] = []
    faults: list[str] = []
    width = 0
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            for fields in reader:
                if not "".join(fields).strip() and len(fields) < 2:
                    continue  # an empty line
                numbers = [_number(field) for field in fields]
                first, width = width == 0, width or len(fields)
                if first and len(fields) < 2:
                    raise ValueError(f"line {reader.line_num}: expected at least 2 columns with commas, found 1.")
                if first and _are_names(numbers):
                    continue
                if len(fields) != width:
                    faults.append(f"line {reader.line_num}: expected {width} fields, found {len(fields)}")
                elif bad := [k for k, x in enumerate(numbers) if x is None or not math.isfinite(x)]:
                    where = f"line {reader.line_num}, field {bad[0] + 1}"
                    faults.append(f"{where}: expected a finite number, found {fields[bad[0]]!r}")
                elif not faults:
                    rows.append(np.array(numbers, dtype=np.float64))
    except UnicodeDecodeError as fault:
        raise ValueError(f"expected text in UTF-8, found another encoding ({fault.reason}).") from None
    except csv.Error as fault:
        raise ValueError(f"line {reader.line_num}: expected fields with commas between them, found {fault}.") from None
    if faults:
        more = f"; and {len(faults) - _SHOWN} more" if len(faults) > _SHOWN else ""
        raise ValueError("; ".join(faults[:_SHOWN]) + more + ". Correct or remove these lines.")
    if not rows:
        raise ValueError("expected one sample a row, found none.")
    table = np.stack(rows)
    return table[:, :-1], table[:, -1]


def _are_names(numbers: list[float | None]) -> bool:
    """Whether a first row names the columns: no field is a number, or all but the last count the columns."""
    *others, last = numbers
    counted = others in (list(range(len(others))), list(range(1, len(others) + 1)))
    return last is None and (counted or not any(number is not None for number in others))


def _number(field: str) -> float | None:
    """A field as a number, if it is one."""
    try:
        return None if "_" in field else float(field)  # Python would read 1_000
    except ValueError:
        return None
