"""Python runs a module of this name at its start: a copy of this one alone stands on the path of a crashed script."""

import importlib.util
import json
import os
import sys
from importlib.machinery import PathFinder

_ORDERS = "CRASH_EVENTS"
_NAME = "_crash_hook"


def _chain() -> None:
    """Run the `sitecustomize` that this file stands before."""
    here = os.path.dirname(os.path.abspath(__file__))
    spec = PathFinder.find_spec("sitecustomize", [path for path in sys.path if os.path.abspath(path) != here])
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def _observe() -> None:
    """Load the hook by its path, under a name of its own, and start it."""
    orders = json.loads(os.environ[_ORDERS])
    path = os.path.join(orders["hook"], "__init__.py")
    spec = importlib.util.spec_from_file_location(_NAME, path, submodule_search_locations=[orders["hook"]])
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[_NAME] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.install(orders)


if __name__ == "sitecustomize":
    _chain()
    if _ORDERS in os.environ:
        _observe()
