"""What is laid on a script's path to see what it does to the files below one directory.

`sitecustomize` is found by every Python process that the script starts, and loads this package by its path, so that
nothing else of the project is there: all of it needs the standard library alone.

    observer     the record of what happens, and the kill
    calls        where Python itself creates, writes and renames files
    libraries    where torch and safetensors write files of their own
"""

import atexit
import json
import os
import sys
import threading
from typing import Any

from .calls import watch_calls
from .libraries import Finder
from .observer import IGNORED, Observer

__all__ = ["IGNORED", "VARIABLE", "install"]

VARIABLE = "CRASH_EVENTS"


def install(orders: dict[str, Any]) -> Observer:
    """Start to observe this process."""
    main = orders.setdefault("main", os.getpid())
    os.environ[VARIABLE] = json.dumps(orders)  # processes that this one starts are not the first
    observer = Observer(orders["root"], orders["folder"], orders["kill"], orders["torn"], main, orders["keep"])
    observer.record("start", "", index=-1)
    watch_calls(observer)
    sys.meta_path.insert(0, Finder(observer))
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=lambda: _forked(observer))
    atexit.register(lambda: observer.quiet("end", ""))
    return observer


def _forked(observer: Observer) -> None:
    """A fork records, and is not counted."""
    observer.lock = threading.RLock()
    observer.count = observer.kill = -1
