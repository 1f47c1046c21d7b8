"""The batches that a loop got, kept in a folder by one run and delivered by another instead of its own."""

import io
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from torch_port.audit.judge.record import Delivery, batch_file

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
