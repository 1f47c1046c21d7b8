"""The exercise `data_order`: a shuffled sampler that resumes anywhere, any number of times."""

import json
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


def orders_of(batches: Batches, n: int) -> Batches:
    """The orders of the epochs that batches go through."""
    samples = joined(batches)
    return [samples[i : i + n] for i in range(0, len(samples), n)]


def placed(batch: list[int], orders: Batches) -> str:
    """Where a batch comes in the orders of a run's epochs: the same words whatever the orders are."""
    for epoch, order in enumerate(orders):
        at = order.index(batch[0]) if batch[0] in order else 0
        if order[at : at + len(batch)] == batch:
            return f"places {at} to {at + len(batch) - 1} in the order of epoch {epoch}"
    return "samples that follow each other in no epoch"


def expect_same_batches(
    what: str, expected: Batches, found: Batches, orders: Batches, first: int = 0, otherwise: str = ""
) -> None:
    """That the batches, of which the first has a number, are the same."""
    for i, (ours, theirs) in enumerate(zip(expected, found, strict=True), start=first):
        if ours != theirs:
            where, here, there = f"batch {i}", placed(ours, orders), placed(theirs, orders)
            trees = ({where: here}, {where: there})  # so that the mistakes of other laws are compared, too
            raise Loss(what, where, None, here, there, trees=trees, otherwise=otherwise)


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
            begun, sizes = state, sizes_of(n, batch_size, 1)
            batches, state = take(solution, arrays, n, state, sizes)
            where, indices = f"epoch {epoch} of {n} samples in batches of {batch_size}", joined(batches)
            if sorted(indices) != list(range(n)):
                what, there = f"{where} does not hold every sample once", len(set(indices))
                expect(take(solution, arrays, n, begun, sizes)[0] == batches, what, cause=OUTSIDE)
                orders, _ = take(solution, arrays, n, begun, [n, n])
                expect(len(set(orders[0])) == n, what, cause="samples are drawn with putting back")
                counts = f"{n - there} samples are missed, and {len(indices) - there} come again"
                pieces = [orders[0][i : i + batch_size] for i in range(0, n, batch_size)]
                expect_same_batches(what, pieces, batches, orders, otherwise=counts)
                raise Loss(what, cause=counts)
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
                what = f"epoch {epoch} of seed {seed} has the order of epoch {at} of seed {first}"
                fresh = solution.again()
                alone, _ = take(fresh, arrays, n, start(fresh, n, seed), [n] * (epoch + 1))
                expect(alone[-1] == order, what, cause=OUTSIDE)
                raise Loss(what)
    for seed in (0, 1, 2):
        (again,), _ = take(solution, arrays, n, start(solution, n, seed), [n])
        expect(drawn.get(tuple(again)) == (seed, 0), f"seed {seed} gave another order the second time", cause=OUTSIDE)


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
            found, expected = resumed(), whole[stop:]
            if found != expected:
                what = f"{n} samples, stopped after {stop} batches of {batch_size}"
                expect(resumed() == found, what, cause=OUTSIDE)
                seen = set(joined(whole[stop - stop % per_epoch : stop]))
                rest = set(joined(found)[: n - len(seen)])
                twice, missed = len(rest & seen), n - len(rest | seen)
                effect = f"{twice} samples are seen twice in this epoch, and {missed} are missed"
                expect_same_batches(what, expected, found, orders_of(whole, n), stop, effect)
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
        expect_same_batches(f"{n} samples, resumed before every batch", whole, found, orders_of(whole, n))


@law(
    "Resume with another batch size. Which samples come next?",
    "A position that counts batches means another place as soon as the batches have another size.",
    "Count the samples consumed: add the length of the batch, which may be shorter than batch_size.",
)
def batch_size_may_change(solution: Any, arrays: Arrays) -> None:
    """The batch size may change from one call to the next, and at a resume; the order of the samples stays."""
    n = 29
    orders, _ = take(solution, arrays, n, start(solution, n, 13), [n, n])
    for before, after in ((4, 3), (3, 8), (1, 99), (10, 1)):
        sizes = [before] * 2 + [after] * -(-(n - 2 * before) // after) + [5]
        first, state = take(solution, arrays, n, start(solution, n, 13), sizes[:2])
        text, fresh = saved(solution, state), solution.again()
        found = first + take(fresh, arrays, n, fresh.resume_order(text), sizes[2:])[0]
        places = [min(sum(sizes[:i]), n) for i in range(len(sizes))]
        pieces = [orders[place // n][place % n :][:size] for place, size in zip(places, sizes, strict=True)]
        what = f"two batches of {before}, a resume, then batches of {after}: another order"
        expect_same_batches(what, pieces, found, orders)


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
