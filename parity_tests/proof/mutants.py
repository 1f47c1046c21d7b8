"""Wrong resumes, each with one fault that people really make. Every one must be told from a whole resume.

A mutant is an implementation whose `resume_from_full_checkpoint` reads the file rightly and then does one thing to the
state: `losing` puts back the value of a fresh run at one leaf, `FAULTS` are the subtler mistakes.
"""

from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from numpy_ref import data as data_module
from numpy_ref.proof.laws import lose
from numpy_ref.rng import WORDS
from numpy_ref.train import Run, RunState
from numpy_ref.tree import copy_tree, flatten, map_leaves

Change = Callable[[RunState, RunState, Any], RunState]  # (state in the file, fresh state, run) -> state that goes on


def resuming(impl: ModuleType, change: Change) -> SimpleNamespace:
    """The implementation with a resume that applies the change."""

    def resume(path: Any, data: Any, **options: Any) -> Any:
        run = impl.resume_from_full_checkpoint(path, data, **options)
        fresh = impl.snapshot(impl.init_run(run.config, data))
        state = change(impl.snapshot(run), fresh, run)
        return impl.restore(run.config, state, run_id=run.run_id, fingerprint=run.fingerprint)

    return SimpleNamespace(
        **({name: getattr(impl, name) for name in impl.__all__} | {"resume_from_full_checkpoint": resume})
    )


def losing(path: str) -> Change:
    return lambda state, fresh, run: lose(state, fresh, path)


def leaves_of(state: RunState) -> list[str]:
    """Every leaf of the state: each one can be lost."""
    return list(flatten(state))


def _half(state: RunState, prefix: str) -> RunState:
    def rounded(path: str, leaf: Any) -> Any:
        if path.startswith(prefix) and isinstance(leaf, np.ndarray) and leaf.dtype == np.float32:
            return leaf.astype(np.float16).astype(np.float32)
        return leaf

    return map_leaves(rounded, state)


def _only_first(arrays: dict[str, Any], fresh: dict[str, Any]) -> dict[str, Any]:
    first = next(iter(arrays))
    return {name: arrays[name] if name == first else fresh[name] for name in arrays}


def _optimizer(state: RunState, **fields: Any) -> RunState:
    return state._replace(optimizer=state.optimizer._replace(**fields))


def _position(state: RunState, consumed: int) -> RunState:
    return state._replace(data=state.data._replace(consumed=max(0, consumed)))


def _next_order(state: RunState, run: Run, n: int) -> RunState:
    _, later = data_module.epoch_order(state.rng.order, n)
    return state._replace(rng=state.rng._replace(order=later))


# For a run of Adam, in the middle of an epoch after the first, between two decays of a step schedule; 19 samples.
SAMPLES = 19
FAULTS: dict[str, Change] = {
    "t is the index of the next step": lambda s, f, r: _optimizer(s, t=s.optimizer.t + 1),
    "m and v change places": lambda s, f, r: _optimizer(s, m=s.optimizer.v, v=s.optimizer.m),
    "second and later moments dropped": lambda s, f, r: _optimizer(s, m=_only_first(s.optimizer.m, f.optimizer.m)),
    "moments in half precision": lambda s, f, r: _half(s, "optimizer/"),
    "whole checkpoint in half precision": lambda s, f, r: _half(s, ""),
    "first rate from the constructor": lambda s, f, r: s._replace(schedule=s.schedule._replace(rate=f.schedule.rate)),
    "schedule counts epochs": lambda s, f, r: s._replace(schedule=s.schedule._replace(tick=s.data.epoch)),
    "rate kept, tick lost": lambda s, f, r: s._replace(schedule=s.schedule._replace(tick=0)),
    "rate in single precision": lambda s, f, r: s._replace(
        schedule=s.schedule._replace(rate=float(np.float32(s.schedule.rate)))
    ),
    "epoch trained again": lambda s, f, r: _position(s, 0),
    "last batch trained twice": lambda s, f, r: _position(s, s.data.consumed - r.config.batch_size),
    "position in batches": lambda s, f, r: _position(s, s.data.consumed // r.config.batch_size),
    "rest of the epoch skipped": lambda s, f, r: _next_order(
        s._replace(data=data_module.Position(s.data.epoch + 1, 0)), r, SAMPLES
    ),
    "order of the next epoch": lambda s, f, r: _next_order(s, r, SAMPLES),
    "order of epoch 0 for ever": losing("rng/order"),
    "seeded again after the load": losing("rng"),
    "generator's position dropped": lambda s, f, r: s._replace(
        rng=s.rng._replace(dropout=s.rng.dropout._replace(pos=WORDS))
    ),
    "one generator for both streams": lambda s, f, r: s._replace(rng=s.rng._replace(order=s.rng.dropout)),
    "best refers to the live weights": lambda s, f, r: s._replace(best=s.best._replace(model=copy_tree(s.model))),
    "best forgotten": losing("best"),
    "running statistics fresh": lambda s, f, r: s._replace(
        model={n: f.model[n] if "running" in n else x for n, x in s.model.items()}
    ),
    "mode switched by the loader": lambda s, f, r: s._replace(mode="eval" if s.mode == "train" else "train"),
}
