"""Wrong counts of operations."""

from typing import Any

import numpy as np

from numpy_ref.exercises.exercise import Arrays, wrapped
from numpy_ref.exercises.mistakes import Replacements, Table, after

NO_ATTENTION = "attention was forgotten"
OVERFLOWED = {bits: f"the result overflowed in an int of {bits} bits" for bits in (32, 64)}
ROUNDED = "the result was rounded in a float"


def mistakes(right: Any, arrays: Arrays) -> Table:
    """See `numpy_ref.exercises.mistakes`."""

    def product(count: Any) -> Replacements:
        return {"matmul_flops": count}

    def forward(more: Any) -> Replacements:
        return {"forward_flops": lambda matmuls, a: right.forward_flops(matmuls, a) + more(matmuls, a)}

    def step(more: Any) -> Replacements:
        return {"training_flops": lambda *given: right.training_flops(*given) + more(*given)}

    def result(change: Any) -> Replacements:
        return {"training_flops": after(right.training_flops, change)}

    def data(more: Any) -> Replacements:
        return step(lambda m, a, r, gradient: 0 if gradient else more(m))

    def one(matmuls: Any, i: int = 0) -> int:
        return int(right.matmul_flops(*matmuls[i])) if matmuls else 0

    def all_of(matmuls: Any, a: int = 0) -> int:
        return int(right.forward_flops(matmuls, a))

    def changed(function: str, change: Any) -> Replacements:
        return {function: lambda matmuls, *rest: (getattr(right, function)(matmuls, *rest), change(matmuls))[0]}

    return {
        "a-product-counts-twice-its-terms": [
            (
                "the 2 of 2 m k n was left out: a term is a multiplication and an addition",
                product(lambda m, k, n: m * k * n),
            ),
            (
                "the first addition counts, too: 2 k operations an element, not 2 k - 1",
                product(lambda m, k, n: m * n * (2 * k - 1)),
            ),
            ("k was left out: each element has k terms", product(lambda m, k, n: 2 * m * n)),
            ("the sizes were added, not multiplied", product(lambda m, k, n: 2 * (m + k + n))),
            ("a float is exact to 2**53 only", product(lambda m, k, n: 2.0 * m * k * n)),
            (ROUNDED, product(lambda m, k, n: int(2.0 * m * k * n))),
            (OVERFLOWED[32], product(lambda m, k, n: wrapped(2 * m * k * n, 32))),
            (OVERFLOWED[64], product(lambda m, k, n: wrapped(2 * m * k * n, 64))),
            ("ints of a fixed size overflow", product(lambda m, k, n: np.int64(wrapped(2 * m * k * n, 64)))),
        ],
        "forward-is-products-and-attention": [
            (NO_ATTENTION, forward(lambda m, a: -a)),
            ("attention was halved, as for a causal mask; it must be taken as it is", forward(lambda m, a: a // 2 - a)),
            ("attention was counted twice", forward(lambda m, a: a)),
            ("attention was taken three times: that is a step, not a forward pass", forward(lambda m, a: 2 * a)),
            (
                "products of the same sizes were counted once; each is computed",
                {"forward_flops": lambda matmuls, a: all_of(set(map(tuple, matmuls)), a)},
            ),
            ("that is the whole step, not the forward pass", forward(lambda m, a: 2 * all_of(m, a))),
        ],
        "a-step-is-three-forward-passes": [
            (
                "the backward pass was counted once; it has two products for each one of the forward pass",
                step(lambda m, a, *_: -all_of(m, a)),
            ),
            ("the backward pass was forgotten", step(lambda m, a, *_: -2 * all_of(m, a))),
            ("the backward pass of attention was forgotten", step(lambda m, a, *_: -2 * a)),
            ("the backward pass of attention was counted once", step(lambda m, a, *_: -a)),
            (NO_ATTENTION, step(lambda m, a, *_: -3 * a)),
        ],
        "data-need-no-gradient": [
            ("the gradient by the input of the first product was counted, and is not computed", data(one)),
            (
                "the gradient by the input of the first product was left out, and is computed",
                step(lambda m, a, r, gradient: -one(m) if gradient else 0),
            ),
            ("the first product has still one gradient in the backward pass, by its weights", data(lambda m: -one(m))),
            ("the whole first product was left out", data(lambda m: -2 * one(m))),
            (
                "gradients by the inputs of all products were left out, not just the first's",
                data(lambda m: -all_of(m[1:])),
            ),
            ("the last product's was left out, not the first's", data(lambda m: one(m) - one(m, -1))),
            ("training_flops raised IndexError", data(lambda m: 0 * len(m[0]))),
        ],
        "what-is-computed-again-counts-once-more": [
            (
                "what is computed again was forgotten: it counts four times in all, not three",
                step(lambda m, a, r, _: -r),
            ),
            ("what is computed again was counted three times more, not once", step(lambda m, a, r, _: 2 * r)),
            ("what is computed again was counted twice more, not once", step(lambda m, a, r, _: r)),
            (
                "the whole forward pass was computed again, not the given part",
                step(lambda m, a, r, _: all_of(m, a) - r if r else 0),
            ),
        ],
        "known-models-have-their-known-cost": [
            (ROUNDED, result(lambda count: int(float(count)))),
            (OVERFLOWED[64], result(lambda count: wrapped(count, 64))),
            ("GPT-2: not the step that is known", result(lambda count: count - (count % 1000 if count > 10**9 else 0))),
        ],
        "arguments-are-left-alone": [
            ("it writes into matmuls, or removes from it", changed("training_flops", lambda matmuls: matmuls.pop(0))),
            ("forward_flops changed what it was given", changed("forward_flops", lambda matmuls: matmuls.reverse())),
        ],
    }
