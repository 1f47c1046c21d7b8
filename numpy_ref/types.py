"""The types that signatures share."""

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
Arrays = dict[str, Array]
