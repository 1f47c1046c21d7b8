"""`python -m numpy_ref VERB`."""

import sys

import numpy_ref
from numpy_ref.cli import main

if __name__ == "__main__":
    sys.exit(main(numpy_ref))
