"""Wrong versions of a data order."""

from itertools import count
from time import perf_counter_ns
from typing import Any

from numpy_ref.exercises.data_order import CHANGED, OUTSIDE
from numpy_ref.exercises.exercise import Arrays
from numpy_ref.exercises.mistakes import Replacements, Table, after, before

NEXT_EPOCH = "the order is that of the next epoch: the generator was saved after its draw, not before"
OWN_ORDERS = "every batch is cut from an order of its own: the generator was kept as it is after its draw, not before"
OF_SIZE = "the order depends on the size of the batch"
ANOTHER = "is saved as another"
POSITION_LOST = "the position was lost: the epoch begins again"
ELSEWHERE = count(1)  # goes on from one wrong version to the next, as a global generator does
SEED = "the seed was left out, or a part of it"


def mistakes(right: Any, arrays: Arrays) -> Table:
    """See `numpy_ref.exercises.mistakes`."""
    kept: dict[int, Any] = {}
    salt = str(perf_counter_ns())  # another for each wrong version, as that of hash() is for each process

    def batch(over: Any = lambda at, n, size: at == n, cut: Any = lambda o, at, k: o[at : at + k],
              new: Any = lambda state, at, after: state) -> Replacements:  # fmt: skip
        def next_batch(state: Any, batch_size: int) -> Any:
            n, rng, at = state["n"], state["rng"], state["consumed"]
            order, following = right.draw_order(n, rng)
            if over(at, n, batch_size):
                rng, at = following, 0
                order, following = right.draw_order(n, rng)
            indices = cut(order, at, batch_size)
            return indices, new({"n": n, "rng": rng, "consumed": at + len(indices)}, at, following)

        return {"next_batch": next_batch}

    def changing(change: Any) -> Replacements:
        def next_batch(state: Any, batch_size: int) -> Any:
            indices, new = right.next_batch(state, batch_size)
            state.update(change(new))
            return indices, new

        return {"next_batch": next_batch}

    def counting_batches(state: Any, size: int) -> Any:
        indices, new = right.next_batch(state | {"consumed": min(state["n"], state["consumed"] * size)}, size)
        return indices, new | {"consumed": -(-new["consumed"] // size)}

    def drawn(n: int, seed: int) -> Any:
        return right.draw_order(n, right.first_rng(seed))[0]

    def numbered(first: Any, seed_of: Any, following: Any) -> Replacements:
        return {"first_rng": first, "draw_order": lambda n, rng: (drawn(n, seed_of(rng)), following(rng))}

    def adding(factor: int) -> Replacements:
        return numbered(lambda seed: factor * seed, lambda rng: rng, lambda rng: rng + 1)

    def begin(seed_of: Any) -> Replacements:
        return {"init_order": before(right.init_order, lambda n, seed: (n, seed_of(seed)))}

    def save(change: Any) -> Replacements:
        return {"save_order": before(right.save_order, lambda state: (state | change(state),))}

    def resume(change: Any) -> Replacements:
        return {"resume_order": after(right.resume_order, lambda state: state | change(state))}

    def moved(state: Any) -> Any:
        return {"rng": right.draw_order(state["n"], state["rng"])[1]}

    def from_outside(*_: Any) -> Any:
        return right.first_rng(next(ELSEWHERE))

    return {
        "epoch-holds-every-sample-once": [
            ("the last batch is dropped", batch(over=lambda at, n, k: at + k > n and at > 0)),
            ("the last batch is filled up", batch(cut=lambda o, at, k: o[[(at + i) % len(o) for i in range(k)]])),
            (OWN_ORDERS, batch(new=lambda s, at, after: s | {"rng": after})),
            (
                "an order from outside for every batch",
                batch(cut=lambda o, at, k: ((o + next(ELSEWHERE)) % len(o))[at : at + k]),
                OUTSIDE,
            ),
            ("when the epoch is over, the same call must begin the next one", batch(over=lambda at, n, k: at > n)),
            ("samples are drawn with putting back", batch(cut=lambda o, at, k: o[at : at + k] // 2 * 2)),
            ("returned 2 indices for a batch size of 1", batch(cut=lambda o, at, k: o[[0] * (k + 1)])),
            ("an index that is not from 0 to 0", batch(cut=lambda o, at, k: o[at : at + k] + 1)),
        ],
        "epochs-and-seeds-have-orders-of-their-own": [
            ("a generator outside the state", {"draw_order": lambda n, rng: (drawn(n, next(ELSEWHERE)), rng)}, OUTSIDE),
            ("is not shuffled", batch(cut=lambda o, at, k: sorted(o.tolist())[at : at + k])),
            (
                "every epoch is drawn from the same state",
                {"draw_order": lambda n, rng: (right.draw_order(n, rng)[0], rng)},
            ),
            (
                "orders come back: the epoch is cut short",
                numbered(
                    lambda seed: [seed, 0], lambda rng: rng[0] << 12 | rng[1], lambda rng: [rng[0], (rng[1] + 1) % 16]
                ),
            ),
            (
                "the first state kept in a variable",
                {"init_order": lambda n, seed: kept.setdefault(n, right.init_order(n, seed))},
                OUTSIDE,
            ),
            ("the seed left out", begin(lambda seed: 0), SEED),
            ("the seed kept to a bit", begin(lambda seed: seed & 1), SEED),
            ("the seed and the epoch make one number, as a sum does: a seed more is 1 epochs on", adding(1)),
            ("the seed and the epoch make one number, as a sum does: a seed more is 1000 epochs on", adding(1000)),
        ],
        "states-are-left-as-they-are": [
            ("the state is counted up in place", changing(lambda new: new), CHANGED),
            ("the generator goes on in place", changing(moved), CHANGED),
            (
                "an epoch's generator from outside",
                {"draw_order": lambda n, rng: (right.draw_order(n, rng)[0], from_outside())},
                OUTSIDE,
            ),
        ],
        "resume-goes-on-anywhere": [
            ("the resume draws from outside", resume(lambda s: {"rng": from_outside()}), OUTSIDE),
            (POSITION_LOST, resume(lambda s: {"consumed": 0})),
            ("the position not saved", save(lambda s: {"consumed": 0}), POSITION_LOST),
            ("the position is a sample too early", resume(lambda s: {"consumed": max(0, s["consumed"] - 1)})),
            (
                "the position is a sample too late",
                resume(lambda s: {"consumed": s["consumed"] + (0 < s["consumed"] < s["n"] - 1)}),
            ),
            ("the rest of the epoch was skipped", resume(lambda s: {"consumed": s["n"] if s["consumed"] else 0})),
            (NEXT_EPOCH, save(moved)),
            (
                "the generator saved as it stands in the middle",
                save(lambda s: moved(s) if s["consumed"] else {}),
                NEXT_EPOCH,
            ),
            ("the order is another: the generator is not where it was", resume(lambda s: {"rng": right.first_rng(0)})),
            (
                "the order is that of the first epoch: its generator was kept",
                {
                    "init_order": after(right.init_order, lambda s: kept.update({0: s["rng"]}) or s),
                    **save(lambda s: {"rng": kept[0]}),
                },
            ),
            (
                "raised KeyError",
                {
                    "save_order": lambda s: kept.update({id(s): s}) or str(id(s)),
                    "resume_order": lambda text: kept[int(text)],
                },
            ),
            ("save_order must return JSON", {"save_order": repr}),
            ("save_order must return text", {"save_order": lambda s: s}),
        ],
        "any-number-of-resumes-is-none": [
            ("every resume draws", resume(moved), ANOTHER),
            ("resumes are counted", resume(lambda s: {"resumes": s.get("resumes", 0) + 1}), ANOTHER),
        ],
        "batch-size-may-change": [
            ("the position counts batches, not samples", {"next_batch": counting_batches}),
            (OWN_ORDERS, batch(new=lambda s, at, after: s | {"rng": after})),
            (OF_SIZE, batch(cut=lambda o, at, k: ((o + k) % len(o))[at : at + k])),
            ("the last sample is skipped", batch(over=lambda at, n, k: at >= n - 1 > 0)),
            (POSITION_LOST, resume(lambda s: {"consumed": 0})),
            (
                "the first batch size is kept for ever",
                batch(new=lambda s, at, after: s | {"consumed": min(s["n"], at + 4)}),
            ),
        ],
        "orders-are-the-same-in-every-process": [
            ("another process gives another result", begin(lambda seed: abs(hash(f"{seed}{salt}"))))
        ],
    }
