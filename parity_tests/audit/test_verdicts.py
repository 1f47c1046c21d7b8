"""The verdict on each loop: which state is lost, whether that is proved, and the line to add."""

from typing import NamedTuple

import pytest

pytest.importorskip("torch")

from torch_port.audit import audit
from torch_port.audit.judge.workers import Workers


class Broken(NamedTuple):
    """A loop that loses states."""

    loop: str
    lost: tuple[str, ...]
    advice: str = ""  # a part of the first line
    cause: str = ""  # a part of it
    proved: bool = True
    at: int = 7


MINE = (  # in loops.py; 13 steps
    Broken("ForgetsMoments", ("optimizer/exp_avg_sq",)),
    Broken("ForgetsBuffer", ("model.1.running_var",)),
    Broken("Loader", ("loader.position",)),
    Broken("Accumulates", ("model.grad",)),
    Broken("Coincides", ("k",), "save self.k, and set it in load_state_dict", at=11),
    Broken("Hidden", ("model.c",), "save self.model.c, and set it in load_state_dict", at=11),
    Broken("Recent", ("recent",), "save self.recent, and set it", "recent held 3 items at the stop", at=11),
    Broken("RecentList", ("recent",), "save self.recent, and set it", "recent held 11 items at the stop", at=11),
    Broken("Counts", ("globals.COUNT",), "save COUNT, and set it in load_state_dict (global COUNT)", at=11),
    Broken("Halves", ("model",), "save it in float32", "model is float16 in the file", at=11),
    Broken("HalvesMoments", ("optimizer/momentum_buffer",), "saved as bfloat16", "and float32 in the run: rounded"),
    Broken("CastsOnLoading", ("optimizer/momentum_buffer",), "load_state_dict makes", "float16 after the load and"),
    Broken("Streams_torch", ("streams.noise",), 'self.streams["noise"].set_state(state["noise"])', at=11),
    Broken("Streams_old", ("streams.noise",), 'self.streams["noise"].set_state(state["noise"])', at=11),
    Broken("Streams_numpy", ("streams.noise",), '.bit_generator.state = state["noise"]', at=11),
    Broken("Streams_python", ("streams.noise",), 'self.streams["noise"].setstate(state["noise"])', at=11),
    Broken("PreciseAndCounting", tuple(f"counts.{name}" for name in "abcdef"), proved=False),
    Broken("SlowWeights", ("optimizer.slow",), cause="optimizer.slow is bfloat16 in the file"),
)
OF_DATA = (  # in loops_of_data.py; 13 steps
    Broken("TrainsAgain", ("samples", "again", "data.generator"), "", "a loader's worker draws", False),
    Broken("DrawsInWorkers", ("samples",)),
    Broken("ForgetsHashedNoise", ("own",)),
)
ZOO = (  # in the zoo's faulty_data.py; 13 steps
    Broken("SeedsWorkersByNumber", ("samples",)),
    Broken("WorkersKeepTheOffset", ("samples",)),
    Broken("SetsPositionTooLate", ("samples",)),
    Broken("ChangesTheWorkerCount", ("workers",), at=10),
)
OF_USERS = (  # in loops_of_users.py; 8 steps
    Broken("momentum_in_a_closure", ("Run.step.optimizer/momentum_buffer",), "is in the saved state: load it", at=4),
    Broken("CountsInADefault", ("globals.CountsInADefault.factor.__defaults__[0]",), "keep calls, a default of", at=4),
    Broken("CountsInAClosure", ("counted.calls",), "keep calls, a variable that CountsInAClosure.counter", at=4),
    Broken("FedByAThread", ("queue",), "the position of a queue or a thread", "queue, into which", False, at=4),
    Broken("TrainsInAGenerator", ("loop",), "", "(where epoch, n stood)", False, at=4),
    Broken("TakesTheModel", ("models[1]",), "save self.models[1].state_dict()", at=4),
    Broken("LoadsUnderAPrefix", ("model",), "take 'module.' from the beginning", "matches nothing with", at=4),
    Broken("Assigns", ("optimizer.param_groups",), "make self.optimizer anew", "trains other tensors", at=4),
    Broken("Unties", ("model.1.weight",), "self.model[1].weight = self.model[0].weight", "shares its memory", at=4),
    Broken("UntiesInOneMemory", ("model.1.weight",), "self.model[1].weight = self.model[0].weight", at=4),
    Broken("BestByReference", ("best",), "is no copy of self.model.bias", at=4),
)
ELSEWHERE = (  # in loops_held_elsewhere.py; 8 steps
    Broken("Climbs", ("globals.Ladder.Below.floors", "globals.Ladder.rung"), "save Ladder.", at=5),
    Broken("KeepsGradients", ("globals.Doubled.before.out",), 'save Doubled.before["out"], and set it', at=5),
    Broken("NumbersAsText", ("usual[0]", "usual[1]"), at=5),
    Broken("Collates", ("loader.collate_fn.keywords.dice",), 'collate_fn.keywords["dice"].getstate()', at=5),
    Broken("Hooked", ("model._forward_hooks[0].calls",), "a variable that Hooked.__init__.<locals>.hook", at=5),
    Broken("Rated", ("schedule.lr_lambdas[0].calls",), "a variable that Rated.counted.<locals>.factor", at=5),
)
LOOPS = [
    pytest.param(f"{module}:{row.loop}", steps, row, id=row.loop)
    for module, steps, rows in (
        ("parity_tests.audit.loops", 13, MINE),
        ("parity_tests.audit.loops_of_data", 13, OF_DATA),
        ("parity_tests.zoo.faulty_data", 13, ZOO),
        ("parity_tests.audit.loops_of_users", 8, OF_USERS),
        ("parity_tests.audit.loops_held_elsewhere", 8, ELSEWHERE),
    )
    for row in rows
]


@pytest.mark.parametrize(("target", "steps", "expected"), LOOPS)
def test_what_a_loop_lost_is_named(workers: Workers, target: str, steps: int, expected: Broken) -> None:
    (stop,) = audit(target, steps=steps, at=(expected.at,), power=False, workers=workers).stops
    assert (stop.holds, stop.proved, set(stop.lost)) == (False, expected.proved, set(expected.lost)), stop
    assert expected.advice in stop.advice[0]
    assert expected.cause in stop.cause


SOUND = {
    "loops": ("OnlySaves", "OwnFile", "MakesAPage", "HoldsItself"),
    "loops_of_users": ("momentum_that_is_kept", "SkipsByAnother", "Tied", "OnlyALoss", "Prefetches"),
    "loops_of_data": ("Loads", "SkipsLate"),
    "loops_held_elsewhere": ("KeepsRungs",),
}


@pytest.mark.parametrize(("module", "name"), [(module, name) for module, names in SOUND.items() for name in names])
def test_a_sound_loop_is_not_blamed(workers: Workers, module: str, name: str) -> None:
    report = audit(f"parity_tests.audit.{module}:{name}", steps=8, at=(2, 4, 7), power=False, workers=workers)
    assert (report.verdict, report.status, report.first_lost) == ("bitwise", 0, None), report
    assert "load_state_dict changed nothing" not in report.warnings
    if name == "OwnFile":
        assert all(state.saved is None for state in report.states)
    if name == "Prefetches":
        assert "not covered, as the audit cannot look into it: thread" in report.warnings
    if name == "SkipsLate":
        assert all(apart == 0 for stop in report.stops for step, apart in stop.curve if step > stop.at[0])


def test_a_loop_that_skips_too_few_samples_is_broken(workers: Workers) -> None:
    report = audit("parity_tests.audit.loops_of_users:SkipsTooFew", steps=8, at=(4,), power=False, workers=workers)
    assert report.verdict == "broken"
