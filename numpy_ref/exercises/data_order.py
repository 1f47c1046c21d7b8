"""The exercise `data_order`: a shuffled sampler that resumes anywhere, any number of times.

Long, for a wrong batch may come from the order, the cut or the position, and each law asks which it was.
"""

import json
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from numpy_ref.exercises.exercise import Arrays, Exercise, Loss, described, expect, law, parts, short

SIZES = ((1, 1), (7, 3), (12, 4), (29, 7), (64, 9), (1003, 64))  # samples, batch size

Batches = list[list[int]]

CHANGED = "next_batch changes the state it is given"
OUTSIDE = "the batches come from something outside the state: a global generator, or a variable that outlives a call"


def read_batch(arrays: Arrays, n: int, batch_size: int, value: Any) -> tuple[list[int], Any]:
    """A batch as a list of integers, and the state after it."""
    pair = parts("next_batch", value, ("indices", "state"))
    found = arrays.found("next_batch", pair["indices"])
    array = np.asarray(found)
    expect(array.shape != (0,), "next_batch returned an empty batch",
           cause="when the epoch is over, the same call must begin the next one")  # fmt: skip
    whole = array.ndim == 1 and array.dtype.kind in "iu"
    expect(whole, f"next_batch must return integers on one axis, found {described(found)}")
    expect(len(array) <= batch_size, f"next_batch returned {len(array)} indices for a batch size of {batch_size}")
    outside = [int(i) for i in array if not 0 <= i < n]
    expect(not outside, f"next_batch returned an index that is not from 0 to {n - 1}: {outside[:1]}")
    return [int(i) for i in array], pair["state"]


def take(solution: Any, arrays: Arrays, n: int, state: Any, sizes: list[int]) -> tuple[Batches, Any]:
    """The next batches of these sizes, and the state after them; other code draws from global generators between."""
    batches = []
    for size in sizes:
        arrays.disturb()
        batch, state = read_batch(arrays, n, size, solution.next_batch(state, size))
        batches.append(batch)
    return batches, state


def taken_anew(solution: Any, arrays: Arrays, n: int, text: str, sizes: list[int]) -> Batches:
    """The next batches of these sizes as in a new process, where nothing but the text is left."""
    fresh = solution.again()
    return take(fresh, arrays, n, fresh.resume_order(text), sizes)[0]


def sizes_of(n: int, batch_size: int, epochs: int) -> list[int]:
    """The batch sizes that go through so many epochs."""
    return [batch_size] * (epochs * -(-n // batch_size))


def joined(batches: Batches) -> list[int]:
    """The samples of the batches, in order."""
    return [index for batch in batches for index in batch]


def start(solution: Any, n: int, seed: int) -> Any:
    """A new state."""
    return solution.init_order(n, seed)


def saved(solution: Any, state: Any) -> str:
    """The text of a state."""
    text = solution.save_order(state)
    expect(isinstance(text, str), f"save_order must return text, found {described(text)}")
    try:
        json.loads(text)
    except ValueError:
        raise Loss(f"save_order must return JSON, found {short(text[:60])}") from None
    return str(text)


def expect_same_batches(
    what: str,
    expected: Batches,
    found: Batches,
    n: int,
    seen: list[int],
    first: int = 0,
    again: Callable[[], Batches] | None = None,
) -> None:
    """That the batches are the same; the first that differs is told, with what it means for the epoch.

    Args:
        what: what it would mean for them to differ.
        expected: as they must be.
        found: as they are.
        n: number of samples.
        seen: indices of the epoch that came before.
        first: number of the first batch.
        again: takes the batches that were found once more.
    """
    for i, (ours, theirs) in enumerate(zip(expected, found, strict=True)):
        if ours != theirs:
            rest = joined(found)[: n - len(seen)]
            twice, left = len(set(rest) & set(seen)), n - len(set(rest) | set(seen))
            moved = again is not None and again() != found
            cause = OUTSIDE if moved else order_cause(expected, found, n, seen, twice, left)
            raise Loss(what, f"batch {first + i}", expected=short(ours[:8]), found=short(theirs[:8]), cause=cause)


def order_cause(expected: Batches, found: Batches, n: int, seen: list[int], twice: int, left: int) -> str:
    """Why the batches after a resume may be others, and what that does to the epoch."""
    ours, theirs = joined(expected), joined(found)
    effect = f"; {twice} samples are seen twice in this epoch, and {left} are missed" if twice or left else ""
    at_its_start, at_the_place = n - len(seen), n  # of the next epoch
    if any(theirs[: len(ours) - by] == ours[by:] for by in (at_its_start, at_the_place)):
        return "the order is that of the next epoch: the generator was saved after its draw, not before" + effect
    whole = seen + ours
    if theirs[: len(whole)] == whole[: len(theirs)] and seen:
        return "the position was lost: the epoch begins again" + effect
    for by in range(1, n):
        if theirs[by:] == ours[: len(theirs) - by] and len(theirs) - by > len(theirs) // 2:
            return f"the position is {by} samples too early" + effect
        if ours[by:] == theirs[: len(ours) - by] and len(ours) - by > len(ours) // 2:
            return f"the position is {by} samples too late" + effect
    if [len(batch) for batch in expected] != [len(batch) for batch in found]:
        return "the position is not where it was: batches have other lengths" + effect
    return "the order is another: the generator is not where it was at the start of the epoch" + effect


def cut_cause(solution: Any, arrays: Arrays, n: int, state: Any, size: int) -> str:
    """Why the batches of this size, from the beginning of an epoch, may not be one order that is cut into pieces."""
    (order, following), _ = take(solution, arrays, n, state, [n, n])
    if len(set(order)) < len(order):
        return "samples are drawn with putting back"
    if [order, following] != take(solution, arrays, n, state, [n, n])[0]:
        return OUTSIDE
    (head, *tail), _ = take(solution, arrays, n, state, [size, n - size] if size < n else [n])
    if head != order[: len(head)]:
        return "the order depends on the size of the batch"
    pieces = joined([head, *tail])
    if len(pieces) == n and pieces != order:
        return ("every batch is cut from an order of its own: the generator was kept as it is after its draw, "
                "not before, or drew again")  # fmt: skip
    return ""


@law(
    "Put all batches of one epoch side by side and sort them. What should there be?",
    "Draw without putting back, keep the short batch at the end, and begin a new epoch only with the next call.",
    "Slice the epoch's order from the position on, batch_size long; if the position is n, draw the next order first.",
)
def epoch_holds_every_sample_once(solution: Any, arrays: Arrays) -> None:
    """An epoch holds every sample once, in batches of the size asked for; only the last may be shorter."""
    for n, batch_size in (*SIZES, (7, 99)):
        state = start(solution, n, 3)
        for epoch in range(3):
            begun = state
            batches, state = take(solution, arrays, n, state, sizes_of(n, batch_size, 1))
            where = f"epoch {epoch} of {n} samples in batches of {batch_size}"
            indices = joined(batches)
            twice = sum(count > 1 for count in Counter(indices).values())
            missed = n - len(set(indices))
            if missed or twice:
                cause = cut_cause(solution, arrays, n, begun, batch_size)
                raise Loss(f"{where}: {missed} samples are missed, and {twice} come more than once",
                           cause=cause or "the last batch is dropped, or filled up from another epoch")  # fmt: skip
            full = [len(batch) for batch in batches[:-1]]
            expect(all(size == batch_size for size in full), f"{where}: the batches have the sizes {short(full)}")


@law(
    "Is the second epoch's order the first's? Is it that of another seed? And after a thousand epochs?",
    "A generator goes on from epoch to epoch. A seed made by adding the epoch makes one run's epochs another's.",
    "Keep the generator's state after each draw for the next epoch's, and begin it from the seed alone.",
)
def epochs_and_seeds_have_orders_of_their_own(solution: Any, arrays: Arrays) -> None:
    """Every epoch has a new order, every seed has others, and the same seed has the same."""
    n = 16
    drawn: dict[tuple[int, ...], tuple[int, int]] = {}  # order: its seed and epoch
    for seed, epochs in ((0, 1003), (1, 4), (2, 4), (10_000, 4)):  # long enough for seeds times a thousand to meet
        state = start(solution, n, seed)
        for epoch in range(epochs):
            ((order,), state) = take(solution, arrays, n, state, [n])
            expect(order != sorted(order), f"epoch {epoch} of seed {seed} is not shuffled")
            first, at = drawn.setdefault(tuple(order), (seed, epoch))
            if (first, at) != (seed, epoch):
                raise Loss(f"epoch {epoch} of seed {seed} has the order of epoch {at} of seed {first}",
                           cause=repeat_cause(solution, arrays, n, order, (seed, epoch), (first, at)))  # fmt: skip
    for seed in (0, 1, 2):
        (again,), _ = take(solution, arrays, n, start(solution, n, seed), [n])
        expect(drawn.get(tuple(again)) == (seed, 0), f"seed {seed} gave another order the second time", cause=OUTSIDE)


def repeat_cause(
    solution: Any, arrays: Arrays, n: int, order: list[int], one: tuple[int, int], other: tuple[int, int]
) -> str:
    """Why two epochs, each a seed and its number, may have the same order."""
    fresh = solution.again()
    alone, _ = take(fresh, arrays, n, start(fresh, n, one[0]), [n] * (one[1] + 1))
    if alone[-1] != order:
        return OUTSIDE
    if one[0] == other[0]:
        return "every epoch is drawn from the same state" if one[1] == 1 else "orders come back: the epoch is cut short"
    if one[1] == other[1]:
        return "the seed was left out, or a part of it"
    return f"the seed and the epoch make one number, as a sum does: a seed more is {abs(one[1] - other[1])} epochs on"


@law(
    "Ask for the next batch twice from the same state.",
    "A generator object, or a list, within the state is changed by a call, although the state is the caller's.",
    "Build the new state from new values; let the generator begin from a stored state in every call.",
)
def states_are_left_as_they_are(solution: Any, arrays: Arrays) -> None:
    """A state gives the same batches again, and the same text, whatever was done with it before."""
    n, sizes = 13, [4] * 6
    state = start(solution, n, 5)
    for done in range(6):
        text = saved(solution, state)
        first, _ = take(solution, arrays, n, state, sizes)
        same = saved(solution, state) == text
        again, _ = take(solution, arrays, n, state, sizes)
        for ahead, (ours, theirs) in enumerate(zip(first, again, strict=True), start=done):
            if ours != theirs:
                raise Loss(f"the state after {done} batches gives other batches the second time", f"batch {ahead}",
                           expected=short(ours), found=short(theirs), cause=OUTSIDE if same else CHANGED)  # fmt: skip
        expect(same, f"the state after {done} batches is saved as another text after next_batch", cause=CHANGED)
        _, state = take(solution, arrays, n, state, sizes[:1])


@law(
    "Stop in the middle of an epoch. What has to be known to go on with this epoch's order, from this place in it?",
    "The order in use was drawn before; a generator as it is now draws the next. And the place is counted in samples.",
    "Save n, the generator's state at the epoch's start, and the number of samples consumed; draw the order again.",
)
def resume_goes_on_anywhere(solution: Any, arrays: Arrays) -> None:
    """After a resume at any batch, in a new process, the batches are what they would have been."""
    for n, batch_size in SIZES[:4]:
        sizes = sizes_of(n, batch_size, 3)
        whole, _ = take(solution, arrays, n, start(solution, n, 7), sizes)
        per_epoch = -(-n // batch_size)
        state = start(solution, n, 7)
        for stop in range(2 * per_epoch + 1):
            text = saved(solution, state)
            resumed = partial(taken_anew, solution, arrays, n, text, sizes[stop:])
            found = resumed()
            begun = stop - stop % per_epoch
            seen = joined(whole[begun:stop])
            what = f"{n} samples, stopped after {stop} batches of {batch_size}"
            expect_same_batches(what, whole[stop:], found, n, seen, stop, resumed)
            _, state = take(solution, arrays, n, state, [batch_size])


@law(
    "Resume, take one batch, save, and resume again.",
    "A resume is no new start: the state after it must say the same as the state before the save.",
    "Let resume_order give back just what save_order wrote, and draw nothing in either of them.",
)
def any_number_of_resumes_is_none(solution: Any, arrays: Arrays) -> None:
    """Saving and resuming after every batch, and twice in a row, changes nothing."""
    for n, batch_size in SIZES[:4]:
        sizes = sizes_of(n, batch_size, 3)
        whole, _ = take(solution, arrays, n, start(solution, n, 11), sizes)
        state, found = start(solution, n, 11), []
        for size in sizes:
            text = saved(solution, state)
            state = solution.resume_order(text)
            expect(saved(solution, state) == text, "a state that was saved and resumed is saved as another",
                   cause="the save or the resume draws, counts or rounds something")  # fmt: skip
            (batch,), state = take(solution, arrays, n, solution.resume_order(saved(solution, state)), [size])
            found.append(batch)
        expect_same_batches(f"{n} samples, resumed before every batch", whole, found, n, [])


@law(
    "Resume with another batch size. Which samples come next?",
    "A position that counts batches means another place as soon as the batches have another size.",
    "Count the samples consumed: add the length of the batch, which may be shorter than batch_size.",
)
def batch_size_may_change(solution: Any, arrays: Arrays) -> None:
    """The batch size may change from one call to the next, and at a resume; the order of the samples stays."""
    n = 29
    (one, two), _ = take(solution, arrays, n, start(solution, n, 13), [n, n])
    order = one + two
    for before, after in ((4, 3), (3, 8), (1, 99), (10, 1)):
        state, found = start(solution, n, 13), []
        for resumed in (False, True):
            sizes = [before] * 2 if not resumed else [after] * -(-(n - 2 * before) // after)
            batches, state = take(solution, arrays, n, state, sizes)
            found += joined(batches)
            state = solution.again().resume_order(saved(solution, state)) if not resumed else state
        (batch,), _ = take(solution, arrays, n, state, [5])
        for i, (ours, theirs) in enumerate(zip(order, found + batch, strict=False)):
            if ours != theirs:
                text = f"two batches of {before}, a resume, then batches of {after}: another order"
                raise Loss(text, f"sample {i}", expected=ours, found=theirs,
                           cause=size_cause(solution, arrays, n, before, after))  # fmt: skip


def size_cause(solution: Any, arrays: Arrays, n: int, before: int, after: int) -> str:
    """Why the order may be another when the batch size changes: by the change, or by something else."""
    begun = start(solution, n, 13)
    cause = cut_cause(solution, arrays, n, begun, before)
    if cause:
        return cause
    (order,), _ = take(solution, arrays, n, begun, [n])
    for size in (before, after):
        if joined(take(solution, arrays, n, begun, sizes_of(n, size, 1))[0]) != order:
            return f"the order is another also in batches of {size} throughout: see the law on epochs"
    _, state = take(solution, arrays, n, begun, [before] * 2)
    unbroken, _ = take(solution, arrays, n, state, [before])
    if taken_anew(solution, arrays, n, saved(solution, state), [before]) != unbroken:
        return "the order is another also after a resume with the same size: see the law on resuming"
    return "the position counts batches, not samples"


@law(
    "Start the same seed in another process. Is the order the same?",
    "Python gives the same text another hash in every process, and a clock or a process id is another, too.",
    "Make what a generator begins from of the numbers themselves: no hash(), no time, no address, no set of texts.",
    processes=2,
)
def orders_are_the_same_in_every_process(solution: Any, arrays: Arrays) -> Any:
    """The orders of a seed are the same in every process, and so are those after a resume."""
    n, batches = 29, {}
    for seed in (0, 17):
        state = start(solution, n, seed)
        batches[f"seed {seed}"], state = take(solution, arrays, n, state, sizes_of(n, 10, 3)[:-1])
        batches[f"seed {seed}, resumed"] = taken_anew(solution, arrays, n, saved(solution, state), [10] * 4)
    return {name: np.array(joined(each)) for name, each in batches.items()}


STATEMENT = """
Write init_order, next_batch, save_order and resume_order: a sampler that shuffles the samples anew in every epoch, and
can be saved and resumed after any batch. The state is yours to choose. save_order makes JSON of it, and resume_order a
state of the JSON; nothing else reaches the new process. Orders must follow from the state alone: global generators are
drawn from by other code at any time, and Python's hash() of a text is another in every process. Two seeds, and two
epochs of one seed, have the same order by chance alone, however many epochs there are. A batch is an array of integers,
or a list, and never empty. The last batch of an epoch is shorter if n is no multiple of the batch size.
"""

IDEA = """
A run is saved in the middle of an epoch, and resumed. If the sampler starts a new epoch, samples that were just seen
are seen again, and those that were still to come may not come at all. The loss does not show it. Over many resumes,
some samples are trained on twice as often as others.

To go on in the middle, two things are needed: the order of this epoch, and the place in it. The order was drawn from a
generator before the epoch began. The generator as it stands at the save is the wrong one: it has moved on, and would
draw the order of the next epoch. So keep the generator's state from the start of the epoch, and draw the order again.
(To save the order itself is right, too, and long.)

The place is the number of samples that training has consumed. To count batches is the same thing until the batch size
changes. To count what a loader has handed out is another thing: loaders work ahead, and what waits in their queues was
not trained on.

An easy way out is to begin the generator of each epoch from a seed made of the run's seed and the epoch's number. That
works, if the two are mixed well. Their sum is not: epoch 1 of seed 7 is then epoch 0 of seed 8, and runs that were
meant to be independent share their orders. A thousand times the seed only moves this to epoch 1000, and Python's hash
of a text is another in every process. NumPy's generators take both numbers, as [seed, epoch].

And a generator that everyone uses is nobody's. One draw more in an augmentation or an evaluation, and every order after
it is another. What must come back has to be in the state, and drawn from nothing else.
"""

EXERCISE = Exercise(
    name="data_order",
    title="A data order that resumes in the middle of an epoch",
    teaches="that the order's generator and the position in it are state, counted in samples consumed",
    statement=STATEMENT,
    idea=IDEA,
    functions=("init_order", "next_batch", "save_order", "resume_order"),
    laws=(
        epoch_holds_every_sample_once,
        epochs_and_seeds_have_orders_of_their_own,
        states_are_left_as_they_are,
        resume_goes_on_anywhere,
        any_number_of_resumes_is_none,
        batch_size_may_change,
        orders_are_the_same_in_every_process,
    ),
)
