"""One run of the user's loop as a request asks for it: from the start or from a file, with states put back or left out.

A request (`Spec`) names the file to load, the states to put back and to lose, the steps, and where to save. The record
has the leaves after the construction, after the load and after every step; a leaf that did not change is not repeated.
"""

import json
import os
import types
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import torch
from torch.amp.grad_scaler import GradScaler
from torch.utils.data import DataLoader

from torch_port.audit.judge.findings import Failure
from torch_port.audit.judge.record import Delivery, Leaf
from torch_port.audit.loop.expressions import expression, within
from torch_port.audit.loop.held import feeds
from torch_port.audit.loop.observe import Seen, observe, state_of, walk
from torch_port.audit.loop.places import MISSING
from torch_port.audit.loop.restore import link, make_containers, put_back
from torch_port.audit.loop.samples import UNNAMED, Recorder
from torch_port.audit.loop.unsaved import note_unsaved, refused
from torch_port.audit.loop.values import PLAIN, decode, encode, generator_states, leaf
from torch_port.audit.report.words import REFUSED


class Spec(TypedDict, total=False):
    """What a run is asked to do; plain values, so that it travels as JSON."""

    record: str  # where its record goes
    limit: float  # seconds for each call of the user's code
    start: int  # steps completed before
    steps: int  # at which it ends
    load: str | None
    put_back: dict[str, Any]  # {"file": a dump, "paths": [...], "gone": [...], "links": {...}}: after the load
    lose: list[str]  # paths that are as in the fresh run, after the load
    rest: dict[str, Any]  # for `samples.Recorder`, and so are the next two
    keep: dict[str, Any]
    feed: dict[str, Any]
    save: dict[str, str]  # step -> file
    dump: dict[str, str]  # step -> file of all values
    checks: bool
    changes: bool  # whether the checked load has anything to change
    anew: bool  # in a new process, and no fork of one that has imported the module
    drift: str  # a dump to measure the generators against, after the load


class Trial:
    """One run, with what it saw."""

    def __init__(
        self, spec: Spec, factory: Any, module: types.ModuleType, phase: Any, unseeded: dict[str, str]
    ) -> None:
        """See above; `unseeded`: the digests of the process's generators before any of the user's code ran."""
        self.spec, self.factory, self.module, self.phase, self.unseeded = spec, factory, module, phase, unseeded
        self.moments: list[tuple[Any, dict[str, Leaf], list[str]]] = []  # (when, changed leaves, gone paths)
        self.last: dict[str, Leaf] = {}
        self.deliveries: dict[int, list[Delivery]] = {}
        self.groups: dict[str, str] = {}
        self.loaders: dict[int, str] = {}  # id -> path
        self.facts: dict[str, Any] = {"warnings": [], "opaque": [], "feeding": []}
        self.recorder = Recorder(self._loader_name, spec.get("rest"), spec.get("keep"), spec.get("feed"))

    def execute(self) -> None:
        """Construct, load, put back, step and save."""
        spec, step = self.spec, self.spec["start"]
        self.facts["flags"] = _flags()
        self.recorder.install()
        self.phase.enter("construct")
        self.run = self.factory()
        self._check_protocol()
        seen = self._look()
        if step == 0:
            self._record(step, seen)
            self.facts["used"] = [path for path, one in generator_states().items() if self.unseeded.get(path) != one]
        if spec.get("load"):
            fresh = {
                path: encode(state_of(seen.slots[path].value)) for path in spec.get("lose", []) if path in seen.slots
            }
            self.phase.enter(f"load after step {step}")
            self._load(str(spec["load"]))
            self.phase.leave()
            self._replace(fresh)
            self._measure_drift()
            self._record(step, self._look())
        del seen  # it holds what the loop may replace, and so free, in its next step
        while step < spec["steps"]:
            step += 1
            self.recorder.step = step
            self.recorder.take()
            self.phase.enter(f"step {step}")
            losses = _losses(self.run.step())
            self.phase.leave()
            self.deliveries[step] = self.recorder.take()
            seen = self._look()
            self._record(step, seen, losses, self.deliveries[step])
            self._save(step, seen)
            self._dump(step, seen)
            del seen

    def write(self, record: Path, failure: Failure | None) -> None:
        """The record, whole or not at all."""
        moments = [
            [when, {path: list(one) for path, one in leaves.items()}, gone] for when, leaves, gone in self.moments
        ]
        self.facts["ends"] = self.recorder.ends
        whole = {
            "failure": failure,
            "moments": moments,
            "deliveries": self.deliveries,
            "groups": self.groups,
            "facts": self.facts,
        }
        partial = record.with_suffix(".part")
        partial.write_text(json.dumps(whole))
        partial.rename(record)

    def _check_protocol(self) -> None:
        wanted = ("step",) if self._has_own_file() else ("step", "state_dict", "load_state_dict")
        lacking = [name for name in wanted if not callable(getattr(self.run, name, None))]
        if lacking:
            kind = type(self.run).__name__
            raise TypeError(
                f"{kind}: a run needs step(), and either state_dict() and load_state_dict(state) or save(path) and "
                f"load(path); it lacks {', '.join(lacking)}"
            )

    def _has_own_file(self) -> bool:
        """Whether the run writes and reads a file itself."""
        return all(callable(getattr(self.run, name, None)) for name in ("save", "load"))

    def _look(self) -> Seen:
        seen = walk(self.run, self.module)
        self.loaders = _loaders(seen)
        self.groups.update({path: slot.group for path, slot in seen.slots.items()})
        self.facts["opaque"] = sorted(set(self.facts["opaque"]) | set(seen.opaque))
        feeding = {path for path in seen.opaque if feeds(type(seen.objects[path]))}
        self.facts["feeding"] = sorted(feeding | set(self.facts["feeding"]))
        return seen

    def _record(self, step: int, seen: Seen, losses: Any = (), deliveries: Any = ()) -> None:
        leaves = observe(seen)
        for path, value in dict(losses).items():
            leaves[path] = leaf("loss", value)
        if deliveries:
            got = [one for one in deliveries if one.digest]
            shown = "; ".join(f"{one.loader}: {one.ids if one.ids is not None else one.digest}" for one in got)
            leaves["samples"] = leaf("samples", [(one.ids, one.digest) for one in got])._replace(value=shown[:200])
        if str(step) in self.spec.get("dump", {}) or (step == self.spec["start"] and self.spec.get("load")):
            self.facts.setdefault("aliases", {})[step] = seen.aliases
        changed = {path: one for path, one in leaves.items() if self.last.get(path) != one}
        self.moments.append((step, changed, [path for path in self.last if path not in leaves]))
        self.last = leaves

    def _save(self, step: int, seen: Seen) -> None:
        if path := self.spec.get("save", {}).get(str(step)):
            self.phase.enter(f"save after step {step}")
            try:
                self._write(step, path, seen)
            except Exception as error:
                note_unsaved(error)
                raise
            self.phase.leave()

    def _dump(self, step: int, seen: Seen) -> None:
        """Every value in full, and what is needed to put one back or to say how."""
        if path := self.spec.get("dump", {}).get(str(step)):
            values = {
                name: encode(state_of(slot.value), copy=False)
                for name, slot in seen.slots.items()
                if slot.put is not None or slot.drop is not None
            }
            values["/lists"] = {
                name: encode(one, copy=False)
                for name, one in seen.objects.items()
                if isinstance(one, (list, deque)) and _is_codable(one)
            }
            values["/dicts"] = [name for name, one in seen.objects.items() if isinstance(one, dict)]
            values["/scalers"] = {
                name: one._device for name, one in seen.objects.items() if isinstance(one, GradScaler)
            }
            torch.save(values, path)
            names = {name: expression(seen, name) for name in [*seen.objects, *seen.slots] if name and "/" not in name}
            written = {name: text for name, text in names.items() if text != f"self.{name}"}
            self.facts.setdefault("written", {}).update(written)
            inner = {name: text for name in names if (text := within(seen, name))}
            self.facts.setdefault("within", {}).update(inner)
            self.facts["unsaved buffers"] = [
                f"{name}.{buffer}"
                for name, one in seen.objects.items()
                if isinstance(one, torch.nn.Module)
                for buffer in one._non_persistent_buffers_set
            ]

    def _write(self, step: int, path: str, seen: Seen) -> None:
        """The user's own file, or the state_dict by torch.save."""
        if self._has_own_file():
            self.run.save(path)
            return
        state = self.run.state_dict()
        torch.save(state, path)
        with suppress(RecursionError):  # it holds itself
            self._note_saved(step, state, seen)

    def _note_saved(self, step: int, state: Any, seen: Seen) -> None:
        """The digests of all that the saved dict holds, and which tensors are of another type there."""
        from torch_port.audit.loop.checks import digests, other_types

        self.facts.setdefault("saved", {})[step] = digests(state)
        tensors = {path: slot.value for path, slot in seen.slots.items() if isinstance(slot.value, torch.Tensor)}
        self.facts.setdefault("saved types", {})[step] = other_types(state, tensors, self.last)

    def _load(self, path: str) -> None:
        from torch_port.audit.loop.checks import Unmatched

        with Unmatched() as heard:
            self._load_from(path)
        if heard.found:
            self.facts["unmatched"] = heard.by_path(walk(self.run, self.module))

    def _load_from(self, path: str) -> None:
        if self._has_own_file():
            self.run.load(path)
            return
        state = self._read(path)
        if self.spec.get("checks"):
            from torch_port.audit.loop.checks import checked_load

            self.facts["warnings"] += checked_load(self, state, self.spec["start"])
        else:
            self.run.load_state_dict(state)

    def _read(self, path: str) -> Any:
        """The file this audit wrote a moment ago; where weights_only refuses it, it says so and reads it whole.

        It holds the loop's own state, in a directory of the audit's own, and is read by a process that runs the loop's
        code in any case. A file of any other origin is never read so: see `foreign.read`.
        """
        try:
            return torch.load(path, weights_only=True)
        except Exception as error:
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            state = torch.load(path, weights_only=False)
            text = f"{REFUSED}: {refused(path, state) or reason}"
            self.facts["warnings"].append(text)
            return state

    def _replace(self, fresh: dict[str, Any]) -> None:
        """Lose states, or put them back."""
        values = {path: decode(value) for path, value in fresh.items()}
        values.update({path: MISSING for path in self.spec.get("lose", []) if path not in fresh})
        wanted = self.spec.get("put_back")
        failed: list[str] = []
        if wanted:
            dump = torch.load(wanted["file"], weights_only=True, mmap=True)  # only what is put back is read
            owners = {path[:place] for path in wanted["paths"] for place, letter in enumerate(path) if letter in ".["}
            make_containers(
                walk(self.run, self.module),
                [path for path in dump["/dicts"] if path in owners],
                {path: device for path, device in dump["/scalers"].items() if path in owners},
            )
            failed += link(walk(self.run, self.module), wanted["links"])
            values.update({path: decode(dump[path]) for path in wanted["paths"] if path in dump})
            values.update(dict.fromkeys(wanted["gone"], MISSING))
            values = self._whole_lists(values, dump["/lists"])
        if values:
            failed += put_back(walk(self.run, self.module), values)
        self.facts["not put back"] = failed

    def _whole_lists(self, values: dict[str, Any], lists: dict[str, Any]) -> dict[str, Any]:
        """Lists whose items are others now, each as one value in place of its items."""
        slots = walk(self.run, self.module).slots
        others = {
            path.partition("[")[0]
            for path, value in values.items()
            if "[" in path and (path not in slots or value is MISSING)
        } & lists.keys()
        kept = {path: value for path, value in values.items() if path.partition("[")[0] not in others}
        return {**kept, **{path: decode(lists[path]) for path in others}}

    def _measure_drift(self) -> None:
        """How far each generator is from where the uninterrupted run had it, in draws."""
        if "drift" not in self.spec:
            return
        from torch_port.audit.draws import drift

        dump = torch.load(self.spec["drift"], weights_only=True, mmap=True)
        for path, slot in walk(self.run, self.module).slots.items():
            if slot.kind == "generator" and path in dump:
                with suppress(ValueError):
                    found = drift(decode(dump[path]), state_of(slot.value))
                    if found.relation != "same":
                        self.facts.setdefault("drift", {})[path] = found.text

    def _loader_name(self, loader: Any) -> str:
        if id(loader) not in self.loaders and hasattr(self, "run"):
            self.loaders = _loaders(walk(self.run, self.module))
        return self.loaders.get(id(loader), UNNAMED)


def _loaders(seen: Seen) -> dict[int, str]:
    """The paths of the loaders that the run holds."""
    return {id(value): path for path, value in seen.objects.items() if isinstance(value, DataLoader)}


def _is_codable(value: Any) -> bool:
    """Whether it is made of tensors, arrays and plain values only."""
    if isinstance(value, torch.Tensor):
        return not value.requires_grad
    if isinstance(value, (list, tuple, deque)):
        return all(map(_is_codable, value))
    return isinstance(value, (*PLAIN, np.ndarray)) and not isinstance(value, (torch.dtype, torch.device))


def _flags() -> list[str]:
    """What decides whether equal runs are equal."""
    return [
        f"torch.use_deterministic_algorithms: {torch.are_deterministic_algorithms_enabled()}",
        f"cudnn.benchmark: {torch.backends.cudnn.benchmark}",
        f"cudnn.deterministic: {torch.backends.cudnn.deterministic}",
        f"float32 matmul precision: {torch.get_float32_matmul_precision()}",
        f"threads: {torch.get_num_threads()}",
        f"PYTHONHASHSEED: {os.environ.get('PYTHONHASHSEED')}",
    ]


def _losses(result: Any) -> dict[str, Any]:
    """What step() returned, as leaves: a number as `loss`, a dict of numbers as `loss/name`."""
    if result is None:
        return {}
    if isinstance(result, dict):
        return {f"loss/{key}": _number(value) for key, value in result.items() if _number(value) is not None}
    if isinstance(result, (tuple, list)):
        return {f"loss/{index}": _number(value) for index, value in enumerate(result) if _number(value) is not None}
    return {"loss": _number(result)} if _number(result) is not None else {}


def _number(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach()
    return value if isinstance(value, (bool, int, float, str)) or hasattr(value, "dtype") else None
