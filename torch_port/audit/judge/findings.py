"""What an audit found: plain values that every report is made from.

    Report -> Control                  are two uninterrupted runs equal?
           -> Stop -> Difference       one resume: what differs first, and what was lost
           -> State                    one state of the loop: saved, restored, needed
           -> Failure                  the user's own exception, and the phase in which it came

A path names a leaf: `model.layer0.weight`, `optimizer/exp_avg/layer0.weight`, `rng/torch`, `sampler.generator`, `loss`.
"""

from typing import Any, NamedTuple

Plain = bool | int | float | str | None
HOLDS, BROKEN, FAILED = 0, 1, 2  # as in numpy_ref.console, which a plugin that is not used must not import


class Difference(NamedTuple):
    """A leaf that differs; the worst element's two values, or what stands there in words."""

    step: int  # updates completed; the step of the stop itself: it differs as soon as the state is loaded
    path: str
    expected: Plain  # of the uninterrupted run
    found: Plain
    distance: float = 0.0  # infinite where there is none (text, another shape, a missing leaf)
    ulps: int | None = None  # the same in units in the last place

    def __str__(self) -> str:
        """One line a person can read."""
        size = f", {self.ulps} units in the last place" if self.ulps is not None else ""
        apart = f" (distance {self.distance:.3g}{size})" if self.distance < float("inf") else ""
        return f"step {self.step}: {self.path}: expected {self.expected!r}, found {self.found!r}{apart}"


class State(NamedTuple):
    """One state of the loop over all stops."""

    path: str
    kind: str  # parameter, buffer, optimizer, schedule, scaler, generator, position, counter, mode, samples, other
    saved: bool | None  # found in what the user saves; None where that cannot be told (the user's own file)
    restored: bool | None  # equal after every load; None: there was no load, or it has no value that can be compared
    needed: bool | None  # without it the resumed run differs; None: not tried
    note: str = ""


class Stop(NamedTuple):
    """One resume: the run stopped after each step in `at`, and went on each time in a new process."""

    at: tuple[int, ...]
    holds: bool
    relation: str  # "bitwise", "within", "differs" or "raises"
    first: Difference | None = None  # the first step that differs, and there the leaf that tells most
    lost: tuple[str, ...] = ()  # a minimal set of states that, put back, makes the run equal; the first tells most
    proved: bool = False  # tried in a new process: with `lost` put back it is equal, with any part of it it is not
    cause: str = ""
    advice: tuple[str, ...] = ()  # lines to add or change
    differing: tuple[str, ...] = ()  # every state that differs right after the load
    curve: tuple[tuple[int, float], ...] = ()  # (step, largest relative distance of a leaf) from the load on


class Failure(NamedTuple):
    """The user's code stopped the audit."""

    phase: str  # "import", "construct", "step 3", "save after step 7", "load", "hang in step 3", ...
    error: str  # "ValueError: ..."
    traceback: str = ""  # the user's own, without the audit's frames


class Control(NamedTuple):
    """Two uninterrupted runs, in two processes."""

    holds: bool
    first: Difference | None = None
    notes: tuple[str, ...] = ()  # flags that matter, a save with side effects
    floor: dict[str, float] = {}  # path -> largest distance between the two, where they differ  # noqa: RUF012


class Report(NamedTuple):
    """The whole audit of one loop."""

    target: str
    steps: int
    verdict: str  # "bitwise", "within", "broken", "not deterministic" or "failed"
    control: Control | None = None
    stops: tuple[Stop, ...] = ()
    states: tuple[State, ...] = ()
    warnings: tuple[str, ...] = ()
    failure: Failure | None = None
    seconds: float = 0.0

    @property
    def holds(self) -> bool:
        """Whether a resumed run equals one that never stopped, as far as the loop equals itself."""
        return self.verdict in ("bitwise", "within")

    @property
    def status(self) -> int:
        """The exit status."""
        return FAILED if self.verdict == "failed" else HOLDS if self.holds else BROKEN

    @property
    def first_lost(self) -> str | None:
        """The lost state that the first broken stop names first."""
        return next((stop.lost[0] for stop in self.stops if stop.lost), None)


def as_plain(value: Any) -> Any:
    """The same as dicts, lists and plain values, for JSON.

    Example:
        >>> as_plain(Failure("import", "ImportError: no module"))
        {'phase': 'import', 'error': 'ImportError: no module', 'traceback': ''}
    """
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {name: as_plain(child) for name, child in value._asdict().items()}
    if isinstance(value, dict):
        return {name: as_plain(child) for name, child in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_plain(child) for child in value]
    return value
