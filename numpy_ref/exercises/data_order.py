"""The exercise `data_order`: a shuffled sampler that resumes anywhere, any number of times."""

import json
from collections import Counter
from typing import Any

import numpy as np

from numpy_ref.exercises.exercise import Arrays, Exercise, Loss, described, expect, law, parts, short

SIZES = ((1, 1), (7, 3), (12, 4), (29, 7), (64, 9), (1003, 64))  # samples, batch size

Batches = list[list[int]]


def read_batch(arrays: Arrays, n: int, batch_size: int, value: Any) -> tuple[list[int], Any]:
    """A batch as a list of integers, and the state after it."""
    pair = parts("next_batch", value, ("indices", "state"))
    found = arrays.found("next_batch", pair["indices"])
    array = np.asarray(found)
    whole = array.ndim == 1 and array.dtype.kind in "iu"
    expect(whole and array.size > 0, f"next_batch must return integers on one axis, found {described(found)}")
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


def sizes_of(n: int, batch_size: int, epochs: int) -> list[int]:
    """The batch sizes that go through so many epochs."""
    return [batch_size] * (epochs * -(-n // batch_size))


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


def expect_same_batches(what: str, expected: Batches, found: Batches, n: int, seen: list[int], first: int = 0) -> None:
    """That the batches are the same; the first that differs is told, with what it means for the epoch.

    Args:
        what: what it would mean for them to differ.
        expected: as they must be.
        found: as they are.
        n: number of samples.
        seen: indices of the epoch that came before.
        first: number of the first batch.
    """
    for i, (ours, theirs) in enumerate(zip(expected, found, strict=True)):
        if ours != theirs:
            rest = [index for batch in found for index in batch][: n - len(seen)]
            again, left = len(set(rest) & set(seen)), n - len(set(rest) | set(seen))
            raise Loss(what, f"batch {first + i}", expected=short(ours[:8]), found=short(theirs[:8]),
                       cause=order_cause(expected, found, n, seen, again, left))  # fmt: skip


def order_cause(expected: Batches, found: Batches, n: int, seen: list[int], again: int, left: int) -> str:
    """Why the batches after a resume may be others, and what that does to the epoch."""
    ours, theirs = ([index for batch in side for index in batch] for side in (expected, found))
    effect = f"; {again} samples are seen twice in this epoch, and {left} are missed" if again or left else ""
    if theirs[: len(ours) - n + len(seen)] == ours[n - len(seen) :]:
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
            batches, state = take(solution, arrays, n, state, sizes_of(n, batch_size, 1))
            where = f"epoch {epoch} of {n} samples in batches of {batch_size}"
            indices = [index for batch in batches for index in batch]
            twice = sum(count > 1 for count in Counter(indices).values())
            missed = n - len(set(indices))
            expect(not missed and not twice, f"{where}: {missed} samples are missed, and {twice} come more than once",
                   cause="samples are drawn with putting back, or the last batch is dropped or filled up")  # fmt: skip
            full = [len(batch) for batch in batches[:-1]]
            expect(all(size == batch_size for size in full), f"{where}: the batches have the sizes {short(full)}")


@law(
    "Is the second epoch's order the first's? Is it that of another seed?",
    "A generator goes on from epoch to epoch. A seed made by adding the epoch makes one run's epochs another's.",
    "Keep the generator's state after each draw for the next epoch's, and begin it from the seed alone.",
)
def epochs_and_seeds_have_orders_of_their_own(solution: Any, arrays: Arrays) -> None:
    """Every epoch has a new order, every seed has others, and the same seed has the same."""
    n, orders = 64, {}
    for seed in (0, 1, 2, 10_000):
        state = start(solution, n, seed)
        for epoch in range(4):
            ((order,), state) = take(solution, arrays, n, state, [n])
            expect(order != sorted(order), f"epoch {epoch} of seed {seed} is not shuffled")
            orders[seed, epoch] = order
    for key, order in orders.items():
        (again,), _ = take(solution, arrays, n, start(solution, n, key[0]), [n])
        expect(again == orders[key[0], 0], f"seed {key[0]} gave another order the second time",
               cause="the order comes from a generator outside the state, which other code moves")  # fmt: skip
        for other, same in orders.items():
            text = f"epoch {key[1]} of seed {key[0]} has the order of epoch {other[1]} of seed {other[0]}"
            cause = "every epoch is drawn from the same state"
            if key[0] != other[0]:
                cause = "the seed was left out" if key[1] == other[1] else "the seed and the epoch were added"
            expect(key >= other or order != same, text, cause=cause)


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
        again, _ = take(solution, arrays, n, state, sizes)
        expect(first == again, f"after batch {done}, the same state gives other batches the second time: "
               f"{short(first[:2])}, then {short(again[:2])}",
               cause="next_batch changes the state it is given")  # fmt: skip
        expect(saved(solution, state) == text, f"after batch {done}, next_batch changed the state it was given",
               cause="next_batch changes the state it is given")  # fmt: skip
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
            fresh = solution.again()  # as in a new process: nothing but the text is left
            found, _ = take(fresh, arrays, n, fresh.resume_order(text), sizes[stop:])
            begun = stop - stop % per_epoch
            seen = [index for batch in whole[begun:stop] for index in batch]
            text = f"{n} samples, stopped after {stop} batches of {batch_size}"
            expect_same_batches(text, whole[stop:], found, n, seen, stop)
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
            found += [index for batch in batches for index in batch]
            state = solution.again().resume_order(saved(solution, state)) if not resumed else state
        (batch,), _ = take(solution, arrays, n, state, [5])
        cause = "the position counts batches, not samples"
        for i, (ours, theirs) in enumerate(zip(order, found + batch, strict=False)):
            if ours != theirs:
                text = f"two batches of {before}, a resume, then batches of {after}: another order"
                raise Loss(text, f"sample {i}", expected=ours, found=theirs, cause=cause)


STATEMENT = """
Write init_order, next_batch, save_order and resume_order: a sampler that shuffles the samples anew in every epoch, and
can be saved and resumed after any batch. The state is yours to choose. save_order makes JSON of it, and resume_order a
state of the JSON; nothing else reaches the new process. Orders must follow from the state alone: global generators are
drawn from by other code at any time. A batch is an array of integers, or a list. The last batch of an epoch is shorter
if n is no multiple of the batch size.
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
meant to be independent share their orders.

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
    ),
)
