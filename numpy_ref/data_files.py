"""Samples in files of the user's, `.npz` and `.csv`: read as they stand, or refused with what is wrong and where."""

import csv
import math
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

_ARRAY_PAIRS = (("inputs", "labels"), ("x", "y"))  # names in an .npz file, the first pair present wins
_SHOWN = 3  # faulty lines of a .csv file that a message quotes


def read_npz(path: Path) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Inputs and labels of an .npz file, never unpickling anything."""
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


def read_csv(path: Path) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Inputs and labels of a .csv file; every faulty line is counted, the first few are quoted."""
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
