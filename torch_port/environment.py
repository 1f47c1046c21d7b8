"""What torch adds to the boundary of reproducibility: its part of the environment, devices, and measured rows."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from numpy_ref.proof import boundary as reference
from numpy_ref.proof.boundary import ROWS


def environment(device: torch.device | None = None) -> dict[str, Any]:
    """What the bits of a run may depend on, as JSON values: the reference's record, and under "torch" torch's part.

    Args:
        device: of the run; by default torch's default device.

    Example:
        >>> environment()["torch"]["device"]
        'cpu'
    """
    device = torch.get_default_device() if device is None else device
    record: dict[str, Any] = {
        "version": torch.__version__,
        "device": device.type,
        "threads": torch.get_num_threads(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "mkl": torch.backends.mkl.is_available(),  # type: ignore[no-untyped-call]
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "matmul_precision": torch.get_float32_matmul_precision(),
    }
    if device.type == "cuda":
        record |= {
            "name": torch.cuda.get_device_name(device),
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
            "cudnn_benchmark": torch.backends.cudnn.benchmark,
        }
    return reference.environment() | {"torch": record}


@contextmanager
def on_device(name: str) -> Iterator[None]:
    """New runs live on this device.

    Args:
        name: as for `torch.device`, such as "cpu" or "cuda:0".

    Raises:
        ValueError: there is no such device here.

    Example:
        >>> with on_device("cpu"):
        ...     torch.zeros(1).device
        device(type='cpu')
    """
    try:
        with warnings.catch_warnings(action="ignore"):
            device = torch.device(name)
            torch.zeros(1, device=device).item()  # "meta" is a device without numbers
    except Exception:  # each of torch's backends has errors of its own
        raise ValueError(f"device: expected one that is here, such as 'cpu', found {name!r}") from None
    with device:
        yield


class Measured(NamedTuple):
    """A row of the boundary as this machine shows it."""

    row: str  # its name
    kind: str
    holds: bool | None  # None where it cannot be measured here
    figure: str  # what was found
    share: float | None  # of the allowance that was used, for a row of the kind "within"
    note: str  # in which variants of a process, or why not at all


def check_boundary(names: Sequence[str] | None = None) -> Iterator[Measured]:
    """Measure rows of the boundary on this machine, one by one as they are asked for.

    Args:
        names: of the rows; all of them when None.

    Raises:
        ValueError: there is no row of such a name.

    Example:
        >>> [measured] = check_boundary(["stock StepLR"])
        >>> measured.holds, measured.figure
        (True, 'bitwise')
    """
    from torch_port import (
        proof as measures,  # here, since what it measures saves checkpoints, which record an environment
    )

    rows = {row.name: row for row in ROWS}
    unknown = sorted(set(names or ()) - rows.keys())
    if unknown:
        known = ", ".join(map(repr, rows))
        raise ValueError(
            f"check_boundary: expected names of rows, found {', '.join(map(repr, unknown))}. Rows: {known}"
        )
    return (measures.measure(rows[name]) for name in (rows if names is None else names))
