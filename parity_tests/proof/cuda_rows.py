"""Measure the rows of the declared table that need a CUDA device, and print them.

python -m parity_tests.proof.cuda_rows            status 0: they hold; 1: one does not; 2: there is no device
"""

import sys
from collections.abc import Sequence

import torch

import torch_port
from numpy_ref.cli import main as command
from numpy_ref.proof.boundary import ROWS

NAMES = [row.name for row in ROWS if row.name.startswith("CUDA")]


def main(words: Sequence[str] = ()) -> int:
    """Print each row with its kind, whether it holds here, and what was found."""
    if words:
        asked = not {"-h", "--help"}.isdisjoint(words)
        (sys.stdout if asked else sys.stderr).write(f"usage: python -m parity_tests.proof.cuda_rows\n\n{__doc__}")
        return 0 if asked else 2
    if not torch.cuda.is_available():
        sys.stderr.write("no CUDA device: nothing was measured\n")
        return 2
    sys.stdout.write(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, CUDA {torch.version.cuda}\n")
    return command(torch_port, ["boundary", "--check", *(word for name in NAMES for word in ("--row", name))])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
