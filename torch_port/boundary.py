"""What torch adds to the boundary of reproducibility: its part of the environment, and devices."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from numpy_ref import boundary as reference


def environment(device: torch.device | None = None) -> dict[str, Any]:
    """What the bits of a run may depend on, as JSON values: the reference's record, and under "torch" torch's part."""
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

    Raises:
        ValueError: there is no such device here.
    """
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"device: expected one that is here, such as 'cpu', found {name!r} ({reason})") from None
    with device:
        yield
