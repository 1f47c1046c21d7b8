"""The samples that a loop's DataLoaders deliver: recorded in every run, and put back in a trial.

    issued      the sampler is asked for indices, in a worker ahead of time
    delivered   the loop gets the batch; the k-th delivered is the k-th issued

The position of an iterator cannot be set. A trial replays it: the first iterator it makes issues what the interrupted
one still had to, and draws from no generator but for what the sampler draws at its end; all later ones are the loop's
own.
"""

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils.data import dataloader

from torch_port.audit.record import Delivery
from torch_port.audit.values import generator_state, leaf, set_generator_state

_Iterator: Any = dataloader._BaseDataLoaderIter


class Recorder:
    """Records deliveries from `install` on; replays the rest of interrupted iterators where it is given one."""

    def __init__(self, name_of: Callable[[Any], str], rest: dict[str, Any] | None = None) -> None:
        self.name_of = name_of
        self.rest = dict(rest or {})  # loader -> see `record.rest_of_iterators`
        self.ends: dict[int, tuple[int, list[tuple[int, str, str]]]] = {}  # iterator -> step, its draws at the end
        self.step = 0
        self.deliveries: list[Delivery] = []
        self.made = 0

    def take(self) -> list[Delivery]:
        """The deliveries since the last call."""
        self.deliveries, taken = [], self.deliveries
        return taken

    def install(self) -> None:
        """Watch every DataLoader of this process."""
        recorder = self
        make, index, following = _Iterator.__init__, _Iterator._next_index, _Iterator.__next__

        def __init__(self: Any, loader: Any) -> None:
            name = recorder.name_of(loader)
            self._audit = (name, recorder.made, [], _generators(loader))
            recorder.made += 1
            self._audit_rest = recorder.rest.pop(name, None)
            if self._audit_rest is None:
                make(self, loader)
                return
            generators = _generators(loader)
            states = [generator_state(generator) for generator in generators]
            make(self, loader)
            for generator, state in zip(generators, states, strict=True):
                set_generator_state(generator, state)

        def _next_index(self: Any) -> Any:
            _, number, issued, generators = self._audit
            if self._audit_rest is None:
                before = [generator_state(generator) for generator in generators]
                try:
                    issued.append(index(self))
                except StopIteration:
                    after = [generator_state(generator) for generator in generators]
                    recorder.ends.setdefault(number, (recorder.step, _draws(before, after)))
                    raise
            elif self._audit_rest["ids"]:
                issued.append(self._audit_rest["ids"].pop(0))
            else:
                for place, before, after in self._audit_rest.pop("end", ()):
                    if _hex(generator_state(generators[place])) == before:
                        set_generator_state(generators[place], _state(after))
                raise StopIteration
            return issued[-1]

        def __next__(self: Any) -> Any:
            name, number, issued, _ = self._audit
            try:
                batch = following(self)
            except StopIteration:
                recorder.deliveries.append(Delivery(name, number, None, ""))
                raise
            place = int(self._num_yielded) - 1
            ids = _plain_ids(issued[place]) if place < len(issued) else None
            recorder.deliveries.append(Delivery(name, number, ids, _digest(batch)))
            return batch

        _Iterator.__init__, _Iterator._next_index, _Iterator.__next__ = __init__, _next_index, __next__


def _generators(loader: Any) -> list[torch.Generator]:
    """The generators that an iterator of this loader may draw from."""
    found = [torch.default_generator]
    for owner in (loader, loader.sampler, loader.batch_sampler, getattr(loader.batch_sampler, "sampler", None)):
        generator = getattr(owner, "generator", None)
        if isinstance(generator, torch.Generator) and all(generator is not one for one in found):
            found.append(generator)
    return found


def _draws(before: list[Any], after: list[Any]) -> list[tuple[int, str, str]]:
    """The place of each generator that was drawn from, with its state before and after."""
    return [
        (place, _hex(a), _hex(b)) for place, (a, b) in enumerate(zip(before, after, strict=True)) if _hex(a) != _hex(b)
    ]


def _hex(state: torch.Tensor) -> str:
    return state.numpy().tobytes().hex()


def _state(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8)


def _plain_ids(issued: Any) -> Any:
    """Indices as plain numbers; None for a stream that has none."""
    if isinstance(issued, (torch.Tensor, np.ndarray)):
        return issued.tolist()
    if isinstance(issued, (list, tuple)):
        found = [_plain_ids(one) for one in issued]
        return None if found and all(one is None for one in found) else found
    if isinstance(issued, np.generic):
        return issued.item()
    return issued if isinstance(issued, (int, str, float, bool)) else None


def _digest(batch: Any) -> str:
    """A digest of a batch: its tensors, arrays and plain values in their order."""
    sha = hashlib.blake2b(digest_size=8)

    def visit(value: Any) -> None:
        if isinstance(value, dict):
            for key in value:
                sha.update(repr(key).encode())
                visit(value[key])
        elif isinstance(value, (list, tuple)):
            for child in value:
                visit(child)
        elif isinstance(value, (torch.Tensor, np.ndarray, str, bytes, int, float)):
            sha.update(leaf("", value).digest.encode())

    visit(batch)
    return sha.hexdigest()
