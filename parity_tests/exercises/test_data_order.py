"""The exercise `data_order`: right solutions pass, wrong ones are caught by the law meant for them, with a reason."""

from pathlib import Path

import pytest

from numpy_ref.exercises import exercise_named
from parity_tests.exercises.solutions import (
    FRAMEWORKS,
    Mutant,
    check_mutant,
    check_stub,
    graded,
    mutants_of,
    reference,
    told,
)
from parity_tests.implementations import NO_TORCH

ONCE, OWN = "epoch-holds-every-sample-once", "epochs-and-seeds-have-orders-of-their-own"
LEFT, RESUME = "states-are-left-as-they-are", "resume-goes-on-anywhere"
MANY, SIZE = "any-number-of-resumes-is-none", "batch-size-may-change"
PROCESSES = "orders-are-the-same-in-every-process"
INIT = 'return {"n": n, "rng": first_rng(seed), "consumed": 0}'
READ = '    n, rng, consumed = state["n"], state["rng"], state["consumed"]\n'
OVER = "        rng, consumed = after, 0\n        order, after = draw_order(n, rng)\n"
BATCH = "batch = order[consumed : consumed + batch_size]\n"
NEXT = 'return batch, {"n": n, "rng": rng, "consumed": consumed + len(batch)}'
SAVE, LOAD = "return json.dumps(state)", "    return state\n"
DEF = "def init_order("


def adding(factor: str) -> tuple[tuple[str, str], ...]:
    return (
        (INIT, f'return {{"n": n, "rng": {factor}seed, "consumed": 0}}'),
        (READ, READ + "    after = rng + 1\n    order, _ = draw_order(n, first_rng(rng))\n"),
        ("    order, after = draw_order(n, rng)\n    if", "    if"),
        (OVER, "        rng, consumed = after, 0\n        order, _ = draw_order(n, first_rng(rng))\n"),
    )


MUTANTS = {
    "the last batch is dropped": Mutant(
        ONCE,
        "the last batch is dropped",
        (("if consumed == n:", "if consumed + batch_size > n and consumed > 0:"),),
    ),
    "the last batch is filled up": Mutant(
        ONCE,
        "samples are missed",
        ((BATCH, "batch = order[[(consumed + i) % n for i in range(batch_size)]]\n"),),
        ("numpy",),
    ),
    "the generator kept as it is after the draw": Mutant(
        ONCE, "was kept as it is after its draw, not before", ((NEXT, NEXT.replace('"rng": rng', '"rng": after')),)
    ),
    "an order drawn for the size": Mutant(
        SIZE,
        "the order depends on the size of the batch",
        ((BATCH, "batch = (order + batch_size)[consumed : consumed + batch_size] % n\n"),),
    ),
    "an order from outside for every batch": Mutant(
        ONCE,
        "a variable that outlives a call",
        (
            (READ, READ + "    _calls.append(0)\n"),
            (BATCH, "batch = (order + len(_calls))[consumed : consumed + batch_size] % n\n"),
            (DEF, "_calls: list[int] = []\n\n\n" + DEF),
        ),
    ),
    "an empty batch at the end of the epoch": Mutant(
        ONCE,
        "an empty batch; when the epoch is over, the same call must begin the next one",
        (
            ("if consumed == n:", "if consumed > n:"),
            (NEXT, NEXT.replace("consumed + len(batch)", "consumed + (len(batch) or 1)")),
        ),
    ),
    "drawn with putting back": Mutant(
        ONCE, "drawn with putting back", ((BATCH, "batch = order[consumed : consumed + batch_size] // 2 * 2\n"),)
    ),
    "a batch reaches into the next epoch": Mutant(
        ONCE,
        "come more than once",
        (("if consumed == n:", "if consumed + batch_size > n:"),),
    ),
    "a batch too long": Mutant(
        ONCE,
        "returned 2 indices for a batch size of 1",
        (
            (
                BATCH,
                "batch = order[consumed : consumed + batch_size] if n > 1 else order[[0, 0]]\n",
            ),
        ),
    ),
    "indices from 1": Mutant(
        ONCE, "an index that is not from 0 to 0", ((BATCH, "batch = order[consumed : consumed + batch_size] + 1\n"),)
    ),
    "a generator outside the state": Mutant(
        OWN,
        "a global generator",
        ((READ, READ + "    rng = first_rng(int(np.random.randint(2**31))) if consumed in (0, n) else rng\n"),),
        ("numpy",),
    ),
    "not shuffled": Mutant(
        OWN, "is not shuffled", ((BATCH, "batch = np.sort(order)[consumed : consumed + batch_size]\n"),), ("numpy",)
    ),
    "the same order in every epoch": Mutant(
        OWN, "every epoch is drawn from the same state", ((OVER, "        consumed = 0\n"),)
    ),
    "the epoch kept to four bits": Mutant(
        OWN,
        "orders come back",
        (
            (INIT, 'return {"n": n, "rng": [seed, 0], "consumed": 0}'),
            (READ, READ + "    after = [rng[0], (rng[1] + 1) % 16]\n"),
            (
                "    order, after = draw_order(n, rng)\n    if",
                "    order, _ = draw_order(n, first_rng(rng[0] * 4096 + rng[1]))\n    if",
            ),
            (
                OVER,
                OVER.replace("order, after", "order, _").replace("n, rng", "n, first_rng(rng[0] * 4096 + rng[1])"),
            ),
        ),
    ),
    "the order kept in a variable": Mutant(
        OWN,
        "a variable that outlives a call",
        (
            (
                BATCH,
                "order = _kept.setdefault(n, order)\n    " + BATCH,
            ),
            (OVER, OVER + "        _kept.pop(n, None)\n"),
            (DEF, "_kept: dict[int, Any] = {}\n\n\n" + DEF),
        ),
    ),
    "the seed left out": Mutant(OWN, "the seed was left out", ((INIT, INIT.replace("seed", "0")),)),
    "the seed and the epoch added": Mutant(
        OWN, "make one number, as a sum does: a seed more is 1 epochs on", adding("")
    ),
    "a thousand seeds and the epoch added": Mutant(
        OWN, "make one number, as a sum does: a seed more is 1000 epochs on", adding("1000 * ")
    ),
    "the seed kept to 8 bits": Mutant(OWN, "or a part of it", ((INIT, INIT.replace("seed)", "seed & 1)")),)),
    "the state is counted up in place": Mutant(
        LEFT,
        "next_batch changes the state it is given",
        ((NEXT, 'state["consumed"] = consumed + len(batch)\n    state["rng"] = rng\n    return batch, state'),),
    ),
    "the generator goes on in place": Mutant(
        LEFT, "next_batch changes the state it is given", ((NEXT, 'state["rng"] = after\n    ' + NEXT),)
    ),
    "an epoch's generator from outside": Mutant(
        LEFT,
        "a global generator",
        ((OVER, OVER.replace("after, 0", "first_rng(int(np.random.randint(2**31))), 0")),),
        ("numpy",),
    ),
    "the resume draws from outside": Mutant(
        RESUME,
        "a global generator",
        ((LOAD, '    state["rng"] = first_rng(int(np.random.randint(2**31)))\n' + LOAD),),
        ("numpy",),
    ),
    "the position lost": Mutant(
        RESUME, "the position was lost: the epoch begins again", ((LOAD, '    state["consumed"] = 0\n' + LOAD),)
    ),
    "the position not saved": Mutant(
        RESUME, "samples are seen twice in this epoch", ((SAVE, 'return json.dumps(state | {"consumed": 0})'),)
    ),
    "the last batch again": Mutant(
        RESUME, "samples too early", ((LOAD, '    state["consumed"] = max(0, state["consumed"] - 1)\n' + LOAD),)
    ),
    "one sample skipped": Mutant(
        RESUME,
        "samples too late",
        ((LOAD, '    state["consumed"] += 0 < state["consumed"] < state["n"] - 1\n' + LOAD),),
    ),
    "the rest of the epoch skipped": Mutant(
        RESUME, "batch 1", ((LOAD, '    state["consumed"] = state["n"] if state["consumed"] else 0\n' + LOAD),)
    ),
    "the order of the next epoch": Mutant(
        RESUME,
        "saved after its draw, not before",
        ((SAVE, 'return json.dumps(state | {"rng": draw_order(state["n"], state["rng"])[1]})'),),
    ),
    "the generator saved as it stands after the draw": Mutant(
        RESUME,
        "saved after its draw, not before",
        (
            (
                SAVE,
                'state = state | {"rng": draw_order(state["n"], state["rng"])[1]} if state["consumed"] else state\n    '
                + SAVE,
            ),
        ),
    ),
    "the generator seeded anew": Mutant(
        RESUME, "the order is another", ((LOAD, '    state["rng"] = first_rng(0)\n' + LOAD),)
    ),
    "the order of the first epoch for ever": Mutant(
        RESUME,
        "the order is another",
        (
            (SAVE, 'return json.dumps(state | {"rng": _first[0] if _first else state["rng"]})'),
            (INIT, "_first[:] = [first_rng(seed)]\n    " + INIT),
            (DEF, "_first: list[Any] = []\n\n\n" + DEF),
        ),
    ),
    "the state remembered in the process": Mutant(
        RESUME,
        "raised KeyError",
        (
            (SAVE, "_kept[id(state)] = state\n    return json.dumps(id(state))"),
            ("state: State = json.loads(text)", "state: State = _kept[json.loads(text)]"),
            (DEF, "_kept: dict[int, Any] = {}\n\n\n" + DEF),
        ),
    ),
    "no JSON": Mutant(RESUME, "save_order must return JSON", ((SAVE, "return repr(state)"),)),
    "no text": Mutant(RESUME, "save_order must return text", ((SAVE, "return state"),)),
    "every resume draws": Mutant(
        MANY, "is saved as another", ((LOAD, '    state["rng"] = draw_order(state["n"], state["rng"])[1]\n' + LOAD),)
    ),
    "resumes are counted": Mutant(
        MANY, "is saved as another", ((LOAD, '    state["resumes"] = state.get("resumes", 0) + 1\n' + LOAD),)
    ),
    "the position in batches": Mutant(
        SIZE,
        "the position counts batches, not samples",
        (
            (READ, READ + "    consumed = min(n, consumed * batch_size)\n"),
            (NEXT, NEXT.replace("consumed + len(batch)", "-(-consumed // batch_size) + 1")),
        ),
    ),
    "the generator after the draw, in any size": Mutant(
        SIZE, "was kept as it is after its draw, not before", ((NEXT, NEXT.replace('"rng": rng', '"rng": after')),)
    ),
    "the last sample skipped": Mutant(
        SIZE, "another also in batches of", (("if consumed == n:", "if consumed >= n - 1 and n > 1:"),)
    ),
    "a resume that loses the position": Mutant(
        SIZE, "another also after a resume with the same size", ((LOAD, '    state["consumed"] = 0\n' + LOAD),)
    ),
    "a seed from the hash of a text": Mutant(
        PROCESSES, "another process gives another result", ((INIT, INIT.replace("(seed)", "(abs(hash(str(seed))))")),)
    ),
    "the first batch size for ever": Mutant(
        SIZE, "in batches of 3 throughout", ((NEXT, NEXT.replace("consumed + len(batch)", "min(n, consumed + 4)")),)
    ),
}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_reference_keeps_every_law(tmp_path: Path, framework: str) -> None:
    text = reference("data_order", framework)
    report = graded(tmp_path, "data_order", text, framework, in_process=framework == "torch")
    assert told(report) == []
    assert len(report.outcomes) == len(exercise_named("data_order").laws)


@pytest.mark.parametrize(("mutant", "framework"), mutants_of(MUTANTS))
def test_a_wrong_solution_is_caught_by_the_law_meant_for_it_with_the_reason(
    tmp_path: Path, mutant: Mutant, framework: str
) -> None:
    check_mutant(tmp_path, "data_order", mutant, framework)


def test_every_law_has_a_mutant() -> None:
    assert {mutant.law for mutant in MUTANTS.values()} == {law.name for law in exercise_named("data_order").laws}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_empty_stub_fails_with_one_clear_line(tmp_path: Path, framework: str) -> None:
    check_stub(tmp_path, "data_order", framework)


BY_EPOCH = """
import json
import numpy as np
def order(n, seed, epoch):
    return np.random.default_rng([seed, epoch]).permutation(n).tolist()
def init_order(n, seed):
    return (n, seed, 0, 0)
def next_batch(state, batch_size):
    n, seed, epoch, position = state
    batch = order(n, seed, epoch)[position:position + batch_size]
    position += len(batch)
    return batch, (n, seed, epoch + 1, 0) if position == n else (n, seed, epoch, position)
def save_order(state):
    return json.dumps(dict(zip("nsep", state)))
def resume_order(text):
    return tuple(json.loads(text)[key] for key in "nsep")
"""
REMAINDER = """
import json
def shuffled(n, words):
    items, value = list(range(n)), words
    for i in range(n - 1, 0, -1):
        value = (value * 6364136223846793005 + 1442695040888963407) % 2**64
        j = (value >> 33) % (i + 1)
        items[i], items[j] = items[j], items[i]
    return items, (value * 6364136223846793005 + 1442695040888963407) % 2**64
class Place:
    def __init__(self, n, words, left):
        self.n, self.words, self.left = n, words, left
def init_order(n, seed):
    return Place(n, (seed * 0x9E3779B97F4A7C15 + 12345) % 2**64, [])
def next_batch(state, batch_size):
    left, words = state.left, state.words
    if not left:
        left, words = shuffled(state.n, words)
    return left[:batch_size], Place(state.n, words, left[batch_size:])
def save_order(state):
    return json.dumps([state.n, str(state.words), state.left])
def resume_order(text):
    n, words, left = json.loads(text)
    return Place(n, int(words), left)
"""
GENERATOR = """
import copy, json
import numpy as np
def init_order(n, seed):
    return {"n": n, "at": 0, "rng": np.random.default_rng(seed), "before": None, "order": None}
def next_batch(state, batch_size):
    state = copy.deepcopy(state)
    if state["order"] is None or state["at"] >= state["n"]:
        state["before"] = state["rng"].bit_generator.state
        state["order"] = np.arange(state["n"], dtype=np.int32)
        state["rng"].shuffle(state["order"])
        state["at"] = 0
    batch = np.array(state["order"][state["at"]:][:batch_size])
    state["at"] += batch.size
    return [batch, state]
def save_order(state):
    rng = state["before"] if state["before"] is not None else state["rng"].bit_generator.state
    return json.dumps([state["n"], state["at"], rng])
def resume_order(text):
    n, at, rng = json.loads(text)
    state = init_order(n, 0)
    state["rng"].bit_generator.state = rng
    return state if at == 0 else next_batch(state, at)[1]
"""
RANDPERM = """
import json
import torch
def init_order(n, seed):
    words = torch.randint(2**31, (2000,), generator=torch.Generator().manual_seed(seed)).tolist()
    return {"n": n, "words": words, "epoch": 0, "at": 0}
def next_batch(state, batch_size):
    state = dict(state)
    if state["at"] == state["n"]:
        state |= {"epoch": state["epoch"] + 1, "at": 0}
    generator = torch.Generator().manual_seed(state["words"][state["epoch"]])
    batch = torch.randperm(state["n"], generator=generator)[state["at"]:state["at"] + batch_size]
    state["at"] += batch.numel()
    return batch, state
save_order = json.dumps
resume_order = json.loads
"""


@pytest.mark.parametrize("text", [BY_EPOCH, REMAINDER, GENERATOR], ids=["by epoch", "what is left", "a live generator"])
def test_differently_written_right_solutions_pass(tmp_path: Path, text: str) -> None:
    assert told(graded(tmp_path, "data_order", text)) == []


@NO_TORCH
@pytest.mark.parametrize("text", [REMAINDER, RANDPERM], ids=["what is left", "by epoch"])
def test_differently_written_right_solutions_in_torch_pass(tmp_path: Path, text: str) -> None:
    assert told(graded(tmp_path, "data_order", text, "torch")) == []
