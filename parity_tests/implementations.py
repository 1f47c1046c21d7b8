"""The implementations that the laws are held to. Without torch its port is left out, and a test says so by a skip."""

from importlib.util import find_spec
from types import ModuleType
from typing import Any

import pytest

import numpy_ref
import torch_port

HAVE_TORCH = find_spec("torch") is not None
IMPLEMENTATIONS: list[ModuleType] = [numpy_ref, torch_port] if HAVE_TORCH else [numpy_ref]
NO_TORCH = pytest.mark.skipif(not HAVE_TORCH, reason="torch is missing: the port cannot be held to the laws")
EACH: list[Any] = [pytest.param(numpy_ref, id="numpy_ref"), pytest.param(torch_port, id="torch_port", marks=NO_TORCH)]
