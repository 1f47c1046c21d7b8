"""The machine a run computes on, with torch: all that native bits may depend on, and the device of new runs."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from numpy_ref import machine as reference


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
