"""The samples that a loop's DataLoaders deliver: recorded in every run, and put back in a trial.

    issued      the sampler is asked for indices, in a worker ahead of time
    delivered   the loop gets the batch; the k-th delivered is the k-th issued

The position of an iterator cannot be set. A trial replays it: the first iterator it makes issues what the interrupted
one still had to, and draws from no generator but for what the sampler draws at its end; all later ones are the loop's
own. Nor can what a worker holds be set: there a trial delivers the very batches that the uninterrupted run got, while
the loop's own are fetched and dropped, with all that the fetching draws.
"""

import hashlib
import io
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import dataloader

from torch_port.audit.judge.record import Delivery, batch_file
from torch_port.audit.loop.values import generator_state, leaf, set_generator_state

UNNAMED = "loader"  # a loader that the run does not hold
_Iterator: Any = dataloader._BaseDataLoaderIter


class Watch:
    """One pass over a loader's data, as it is recorded."""

    def __init__(self, loader: Any, name: str, number: int, rest: dict[str, Any] | None) -> None:
        self.loader = weakref.ref(loader)
        self.name, self.number, self.rest = name, number, rest
        self.generators = _generators(loader)
        self.issued: list[Any] = []
        self.early = name == UNNAMED  # perhaps because the run is still being made: to be asked for once more


class Recorder:
    """Records deliveries from `install` on.

    Args:
        name_of: the path of a loader, `UNNAMED` where it has none.
        rest: loader -> what its interrupted iterator still has to issue, see `record.rest_of_iterators`.
        keep: see `samples.Keeper`.
        feed: see `samples.Feeder`.
    """

    def __init__(
        self,
        name_of: Callable[[Any], str],
        rest: dict[str, Any] | None = None,
        keep: dict[str, Any] | None = None,
        feed: dict[str, Any] | None = None,
    ) -> None:
        self.name_of = name_of
        self.rest = dict(rest or {})
        self.keeper, self.feeder = Keeper(**keep) if keep else None, Feeder(**feed) if feed else None
        self.ends: dict[int, tuple[int, list[tuple[int, str, str]]]] = {}  # iterator -> step, its draws at the end
        self.step = 0
        self.deliveries: list[Delivery] = []
        self.made = 0

    def take(self) -> list[Delivery]:
        """The deliveries since the last call."""
        self.deliveries, taken = [], self.deliveries
        return taken

    def watch(self, loader: Any) -> Watch:
        """A loader's data is about to be passed over."""
        name = self.name_of(loader)
        key = next(iter(self.rest)) if name == UNNAMED and len(self.rest) == 1 else name  # the run is being made
        self.made += 1
        return Watch(loader, name, self.made - 1, self.rest.pop(key, None))

    def deliver(self, watch: Watch, ids: Any, batch: Any) -> Any:
        """What the loop gets in place of a batch, or of the end of an iterator."""
        if watch.early and (loader := watch.loader()) is not None:
            watch.name = self.name_of(loader)
        watch.early = False
        if self.feeder is not None:
            ids, batch = self.feeder.instead_of(self.step, watch.name, ids, batch)
        if self.keeper is not None:
            self.keeper.keep(self.step, len(self.deliveries), batch)
        ended = batch is ENDED
        self.deliveries.append(
            Delivery(watch.name, watch.number, None if ended else ids, "" if ended else _digest(batch))
        )
        return batch

    def install(self) -> None:
        """Watch every DataLoader of this process."""
        recorder = self
        make, again, index, following = _Iterator.__init__, _Iterator._reset, _Iterator._next_index, _Iterator.__next__

        def __init__(self: Any, loader: Any) -> None:
            self._audit = watch = recorder.watch(loader)
            states = [generator_state(generator) for generator in watch.generators]
            make(self, loader)
            if watch.rest is not None:
                for generator, state in zip(watch.generators, states, strict=True):
                    set_generator_state(generator, state)

        def _reset(self: Any, loader: Any, first_iter: bool = False) -> None:
            if not first_iter:  # the same workers pass over the data again
                self._audit = recorder.watch(loader)
            again(self, loader, first_iter)

        def _next_index(self: Any) -> Any:
            watch = self._audit
            if watch.rest is None:
                before = [generator_state(generator) for generator in watch.generators]
                try:
                    watch.issued.append(index(self))
                except StopIteration:
                    after = [generator_state(generator) for generator in watch.generators]
                    recorder.ends.setdefault(watch.number, (recorder.step, _draws(before, after)))
                    raise
            elif watch.rest["ids"]:
                watch.issued.append(watch.rest["ids"].pop(0))
            else:
                for place, before, after in watch.rest.pop("end", ()):
                    if _hex(generator_state(watch.generators[place])) == before:
                        set_generator_state(watch.generators[place], _state(after))
                raise StopIteration
            return watch.issued[-1]

        def __next__(self: Any) -> Any:
            watch, ids = self._audit, None
            try:
                batch = following(self)
            except StopIteration:
                batch = ENDED
            else:
                place = int(self._num_yielded) - 1
                ids = _plain_ids(watch.issued[place]) if place < len(watch.issued) else None
            batch = recorder.deliver(watch, ids, batch)
            if batch is ENDED:
                raise StopIteration
            return batch

        _Iterator.__init__, _Iterator._reset = __init__, _reset
        _Iterator._next_index, _Iterator.__next__ = _next_index, __next__


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
    """A digest of a batch: its tensors, arrays and plain values in their order, and so of the objects in it."""
    sha = hashlib.blake2b(digest_size=8)
    seen: list[Any] = []  # the objects, which may hold each other

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
        elif hasattr(value, "__dict__") and not callable(value) and all(value is not one for one in seen):
            seen.append(value)
            visit(vars(value))

    visit(batch)
    return sha.hexdigest()


ENDED = object()  # delivered in place of a batch: the iterator is at its end


class Keeper:
    """Keeps batches as they were when they were delivered, until they take too much room."""

    def __init__(self, folder: str, after: int, most: int) -> None:
        self.folder, self.after, self.room = folder, after, most
        Path(folder).mkdir(parents=True, exist_ok=True)

    def keep(self, step: int, place: int, batch: Any) -> None:
        """Keep one, by its place among those of its step; one that cannot be saved is passed over."""
        if step <= self.after or self.room <= 0 or batch is ENDED:
            return
        with suppress(Exception):  # of the user's classes
            whole = io.BytesIO()
            torch.save(batch, whole)
            self.room -= whole.tell()
            if self.room >= 0:
                batch_file(self.folder, step, place).write_bytes(whole.getbuffer())


class Feeder:
    """Delivers what was kept, each batch and each end to the loader of its name and in its step."""

    def __init__(self, folder: str, steps: dict[str, Sequence[Sequence[Any]]]) -> None:
        self.folder = folder
        self.waiting = {
            int(step): [(place, Delivery(*one)) for place, one in enumerate(found)] for step, found in steps.items()
        }

    def instead_of(self, step: int, loader: str, ids: Any, batch: Any) -> tuple[Any, Any]:
        """What a loader delivers in place of a batch with these indices, or of its end; these where nothing was kept.

        The file is of this audit, which wrote it a moment ago from what this loop's own loaders made, and is read by a
        process that runs the loop's code in any case: it may hold the user's classes.
        """
        waiting = self.waiting.get(step, [])
        place, one = next((found for found in waiting if found[1].loader == loader), (None, None))
        if place is None or one is None:
            return ids, batch
        waiting.remove((place, one))
        if not one.digest:
            return None, ENDED
        return one.ids, torch.load(batch_file(self.folder, step, place), weights_only=False)
