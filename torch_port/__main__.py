"""`python -m torch_port VERB`: the command line of `numpy_ref`, on this package."""

import sys

import torch_port
from numpy_ref.cli import main

if __name__ == "__main__":
    sys.exit(main(torch_port))
