"""Each held-out loop with a fault resumes otherwise, and as it should once what it lost is given back; each sound one
resumes bit for bit. By losses and parameters alone, and each run in a process of its own."""

import inspect
import json
import multiprocessing
import warnings
from collections.abc import Iterator, Mapping
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is missing: the loops are torch's")

from parity_tests.zoo import held_out, held_out_last, held_out_more
from parity_tests.zoo.base import STEPS
from parity_tests.zoo.held_out import HELD_FAULTS, HELD_SOUND
from parity_tests.zoo.proof import digest

held_out.fill_registries()
STOPS = (5, 7, 10, 13)

# what was lost: how to take it from the loop that stops, and how to give it to the one that resumes
LOST = {
    "ClippedConvNet": (lambda loop: loop.clipper, lambda loop, lost: setattr(loop, "clipper", lost)),
    "MomentumContrast": (lambda loop: loop.bank.cursor, lambda loop, lost: setattr(loop.bank, "cursor", lost)),
    "truncated_gru": (lambda loop: variables(loop.step)["hidden"].cell_contents,
                      lambda loop, lost: setattr(variables(loop.step)["hidden"], "cell_contents", lost)),
    "FillsGaps": (lambda loop: loop.net.gaps, lambda loop, lost: loop.net.gaps.copy_(lost)),
    "Adversaries": (lambda loop: dict(loop.players["critic"].named_buffers()),
                    lambda loop, lost: loop.players["critic"].load_state_dict(lost, strict=False)),
    "TiedBigram": (lambda loop: None,
                   lambda loop, _: setattr(loop.model.decoder, "weight", loop.model.embedding.weight)),
    "QLearner": (lambda loop: loop.target.state_dict(), lambda loop, lost: loop.target.load_state_dict(lost)),
    "make_two_towers": (lambda loop: loop.optimizer.state_dict(), lambda loop, lost: in_first_order(loop, lost)),
    "LearnsSums": (lambda loop: held_out_more.Curriculum.solved,
                   lambda loop, lost: setattr(held_out_more.Curriculum, "solved", lost)),
    "PolicyGradient": (lambda loop: held_out_more.BASELINE, lambda loop, lost: held_out_more.BASELINE.update(lost)),
    "CautiousRegression": (lambda loop: variables(loop.tell)["caution"].cell_contents,
                           lambda loop, lost: variables(loop.tell)["caution"].cell_contents.update(lost)),
    "ReadsShards": (lambda loop: loop.done, lambda loop, lost: [next(loop.shards) for _ in range(lost)]),
    "CharacterModel": (lambda loop: 9 - 6, lambda loop, lost: [next(loop.lines) for _ in range(lost)]),
    "DenoisingAutoencoder": (lambda loop: loop.loader.dataset.holes,
                             lambda loop, lost: setattr(loop.loader.dataset, "holes", lost)),
    "AugmentsImages": (lambda loop: loop.augment.parts[1].parts[1].generator.get_state(),
                       lambda loop, lost: loop.augment.parts[1].parts[1].generator.set_state(lost)),
    "RankOneOfTwo": (lambda loop: loop.sampler.epoch, lambda loop, lost: at_epoch(loop, lost)),
    "PrefersTheHard": (lambda loop: loop.sampler.weights, lambda loop, lost: loop.sampler.weights.copy_(lost)),
    "Experiment": (lambda loop: loop.trainer.callbacks, lambda loop, lost: setattr(loop.trainer, "callbacks", lost)),
    "lookahead": (lambda loop: loop.optimizer.slow, lambda loop, lost: setattr(loop.optimizer, "slow", lost)),
    "MeanTeacher": (lambda loop: loop.teacher.updates, lambda loop, lost: setattr(loop.teacher, "updates", lost)),
    "AveragesAndLearnsFromIt": (lambda loop: loop.swa.n_averaged, lambda loop, lost: loop.swa.n_averaged.copy_(lost)),
    "SteadyActivations": (lambda loop: loop.usual, lambda loop, lost: setattr(loop, "usual", lost)),
    "CompressesGradients": (lambda loop: held_out_last.SignsOnly.residual,
                            lambda loop, lost: held_out_last.SignsOnly.residual.update(lost)),
    "mixup_run": (lambda loop: variables(loop.loader.collate_fn)["dice"].cell_contents.getstate(),
                  lambda loop, lost: variables(loop.loader.collate_fn)["dice"].cell_contents.setstate(lost)),
}  # fmt: skip


def variables(function: Any) -> dict[str, Any]:
    """The cells of a closure."""
    return dict(zip(function.__code__.co_freevars, function.__closure__, strict=True))


def in_first_order(loop: Any, lost: Any) -> None:
    loop.optimizer = held_out_more.rmsprop(loop.towers, ["user", "item"])
    loop.optimizer.load_state_dict(lost)


def at_epoch(loop: Any, lost: int) -> None:
    loop.sampler.set_epoch(lost)
    loop.batches = islice(iter(loop.loader), loop.batch, None)


def make(name: str) -> Any:
    """A loop, in a process that made none before."""
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    target = HELD_FAULTS[name].target if name in HELD_FAULTS else HELD_SOUND[name]
    module, attribute = target.split(":")
    loop = getattr(import_module(module), attribute)()
    assert next(parameters(loop), None) is not None, "none of the loop's parameters is found"
    return loop


def run(name: str, folder: Path, stops: tuple[int, ...]) -> list[str]:
    """A mark of each step of a run that is saved at the stops, if any, and goes on."""
    loop, marks = make(name), []
    for step in range(1, STEPS + 1):
        marks.append(mark(loop, loop.step()))
        if step in stops:
            path = folder / f"{step}.pt"
            loop.save(str(path)) if hasattr(loop, "save") else torch.save(loop.state_dict(), path)
            if name in LOST:
                torch.save(LOST[name][0](loop), folder / f"{step}.lost")
    return marks


def resume(name: str, folder: Path, at: int, given_back: bool) -> list[str]:
    """The marks of the steps after a stop."""
    loop, path = make(name), folder / f"{at}.pt"
    loop.load(str(path)) if hasattr(loop, "load") else loop.load_state_dict(torch.load(path, weights_only=True))
    if given_back:
        LOST[name][1](loop, torch.load(folder / f"{at}.lost", weights_only=False))
    return [mark(loop, loop.step()) for _ in range(at, STEPS)]


def mark(loop: Any, result: Any) -> str:
    """What tells the result of a step, and the parameters after it, from every other."""
    return digest([digest(result), *(digest(parameter) for parameter in parameters(loop))])


def parameters(value: Any) -> Iterator[torch.Tensor]:
    """Those of every module that a loop has."""
    if isinstance(value, torch.nn.Module):
        yield from value.parameters()
    elif isinstance(value, (list, tuple, Mapping)):
        for one in value.values() if isinstance(value, Mapping) else value:
            yield from parameters(one)
    elif type(value).__module__.startswith((__package__, "types")) and hasattr(value, "__dict__"):
        yield from parameters({key: one for key, one in vars(value).items() if not inspect.isroutine(one)})


def write(path: Path, function: Any, *given: Any) -> None:
    path.write_text(json.dumps(function(*given)))


def alone(folder: Path, function: Any, *given: Any) -> list[str]:
    """What a function returns in a process of its own, a fork of one that has imported and done nothing."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "torch._dynamo"])  # which the first update imports, in 3 s
    process = context.Process(target=write, args=(folder / "marks.json", function, *given))
    process.start()
    process.join()
    assert process.exitcode == 0, f"see the process's own error above: {given}"
    return json.loads((folder / "marks.json").read_text())


@pytest.mark.parametrize("name", HELD_FAULTS)
def test_a_faulty_loop_lost_one_state_and_nothing_else(name, tmp_path):
    (at,) = HELD_FAULTS[name].at
    whole = alone(tmp_path, run, name, tmp_path, ())
    assert alone(tmp_path, run, name, tmp_path, (at,)) == whole
    assert alone(tmp_path, resume, name, tmp_path, at, False) != whole[at:]
    assert alone(tmp_path, resume, name, tmp_path, at, True) == whole[at:]


@pytest.mark.parametrize("name", HELD_SOUND)
def test_a_sound_loop_resumes_bit_for_bit_after_any_stop(name, tmp_path):
    whole = alone(tmp_path, run, name, tmp_path, ())
    assert alone(tmp_path, run, name, tmp_path, STOPS) == whole
    assert len(set(whole)) > STEPS // 2
    for at in STOPS:
        assert alone(tmp_path, resume, name, tmp_path, at, False) == whole[at:], at


def test_there_are_as_many_loops_as_were_held_out():
    assert (len(HELD_FAULTS), len(HELD_SOUND)) == (24, 12)
    assert HELD_FAULTS.keys() == LOST.keys()
