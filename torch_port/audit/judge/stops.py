"""Where a run is stopped: as asked for, or chosen from what the uninterrupted run shows."""

from collections.abc import Sequence
from typing import Any

from torch_port.audit.judge.record import Record

Stops = list[tuple[int, ...]]


def steps_of(stop: int | Sequence[int]) -> tuple[int, ...]:
    """The steps of one run's stop, or of several."""
    return (stop,) if isinstance(stop, int) else tuple(stop)


def checked_stops(at: Any, steps: int) -> Stops:
    """The stops as tuples, each rising.

    Raises:
        ValueError: none, or one that does not lie between the first step and the last but one.
    """
    stops = [steps_of(stop) for stop in at]
    wrong = [
        stop for stop in stops if list(stop) != sorted(set(stop)) or not stop or not 1 <= stop[0] <= stop[-1] < steps
    ]
    if wrong or not stops:
        shown = ", ".join(map(str, (step for stop in wrong for step in stop))) or "none"
        raise ValueError(f"at: expected rising steps from 1 to {steps - 1}, found {shown}")
    return list(dict.fromkeys(stops))


def choose_stops(record: Record, steps: int) -> Stops:
    """The first step, the last but one, and between them a step inside an epoch and the boundary nearest to the middle.

    Boundaries are where an iterator of a DataLoader ends or a learning rate changes.
    """
    ends = {step - 1 for step, found in record.deliveries.items() if any(one.digest == "" for one in found)}
    rates = [path for path in record.at[max(record.at)] if "/lr" in path]
    moved = {
        step
        for step in range(1, steps)
        for path in rates
        if record.at[step].get(path) != record.at.get(step - 1, {}).get(path)
    }
    bounds = {step for step in ends | (moved if len(moved) < steps // 2 else set()) if 1 <= step < steps}
    middle = steps // 2
    inside = sorted(set(range(2, steps - 1)) - bounds, key=lambda step: (abs(step - middle), step))
    chosen = {1, steps - 1, *inside[:1]}
    if bounds:
        chosen.add(min(bounds, key=lambda step: (abs(step - middle), step)))
    third = [step for step in inside if abs(step - middle) >= 3]
    chosen.update(third[:1])
    single: Stops = [(step,) for step in sorted(chosen) if 1 <= step < steps]
    return [*single, (single[0][0], single[-1][0])] if len(single) > 2 else single
