"""Where libraries write files by themselves: `torch.save` in C++, safetensors in Rust; seen once they are imported."""

import importlib.util
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

from .observer import Observer


def _patch_torch(observer: Observer, module: ModuleType) -> None:
    """`torch.save` to a path opens it and writes it in C++."""
    writer: Any = module._open_zipfile_writer_file

    class Writer(writer):  # type: ignore[misc]
        def __init__(self, name: str) -> None:
            _native_open(observer, name, lambda: writer.__init__(self, name))
            self.seen = observer.relative(name, follow=True)

        def __exit__(self, *others: Any) -> None:
            writer.__exit__(self, *others)
            if self.seen is not None:
                observer.quiet("close", self.seen)

    module._open_zipfile_writer_file = Writer  # type: ignore[attr-defined]


def _patch_safetensors(observer: Observer, module: ModuleType) -> None:
    """`save_file` is written in Rust: newer versions rename a temporary, older ones write straight to the name."""
    serialize: Any = module.serialize_file
    numbers = []
    probe = os.path.join(observer.folder, f"probe.{os.getpid()}")
    for _ in range(2):
        serialize({}, probe)
        numbers.append(os.stat(probe).st_ino)
    renames = numbers[0] != numbers[1]

    def serialize_file(tensors: Any, filename: Any, *others: Any, **more: Any) -> Any:
        def do() -> Any:
            return serialize(tensors, filename, *others, **more)

        name = observer.relative(filename, follow=True)
        if name is None:
            return do()
        if renames:
            return observer.replacing(name, do)
        found = do()
        observer.quiet("close", name)
        return found

    module.serialize_file = serialize_file  # type: ignore[attr-defined]


def _native_open(observer: Observer, path: str, do: Callable[[], Any]) -> None:
    """An `open` in C++, which creates or empties."""
    name = observer.relative(path, follow=True)
    if name is not None and os.path.lexists(observer.absolute(name)):
        observer.event("truncate", (name,), do, offset=0)
    else:
        observer.event("create", (name,), do)


_NATIVE = {"torch.serialization": _patch_torch, "safetensors": _patch_safetensors}


class Finder:
    """Patches a module as soon as it has been imported."""

    def __init__(self, observer: Observer) -> None:
        self.observer = observer
        self.looking = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """What the import system asks for."""
        if name not in _NATIVE or self.looking:
            return None
        self.looking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.looking = False
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                _NATIVE[name](self.observer, module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
