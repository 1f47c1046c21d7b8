"""Wrong versions of SGD with momentum."""

from itertools import takewhile
from typing import Any

from numpy_ref.exercises.exercise import Arrays
from numpy_ref.exercises.mistakes import Replacements, Table, after, before

BUFFERS_LOST = "the buffers were lost: the first gradient became the buffer"
FULL = "resume_from_full_checkpoint"
NO_LOOK_AHEAD = "Nesterov's momentum was left out, or taken from the buffer before the step"
NONE_KEPT = '"no buffer yet" was not kept as None'
NOT_PASSED = {
    name: f"{name} was not passed on: it was {value}"
    for name, value in (("momentum", 0.9), ("dampening", 0.0), ("nesterov", False))
}
TWICE = "every gradient was used twice"
ZEROS_FOR_NONE = "a buffer of zeros stood where there was none yet: the first gradient was damped"
USUAL_STEP: dict[str, Any] = {
    "first": lambda g, share: 1.0 * g,
    "later": lambda b, g, momentum, share: momentum * b + share * g,
    "ahead": lambda g, b, old, momentum: g + momentum * b,
    "new": lambda p, d, lr: p - lr * d,
}


def same(x: Any) -> Any:
    """The argument itself."""
    return x


def step(**seams: Any) -> Replacements:
    """A step with a part of it replaced: first buffer, later one, look ahead, or new parameter."""
    first, later, ahead, new = (USUAL_STEP | seams).values()

    def sgd_step(p: Any, g: Any, b: Any, lr: float, *, momentum: float = 0.9, dampening: float = 0.0,
                 nesterov: bool = False) -> Any:  # fmt: skip
        old, share = b, 1 - dampening
        b = first(g, share) if old is None else later(old, g, momentum, share)
        return new(p, ahead(g, b, g * 0 if old is None else old, momentum) if nesterov else b, lr), b

    return {"sgd_step": sgd_step}


def usual(p: Any, g: Any, b: Any, go: Any) -> Any:
    """A parameter's part in a step of training: none without a gradient."""
    return (p, b) if g is None else go(p, g, b)


def unless_zeros(b: Any) -> Any:
    """A buffer, or None for one of zeros."""
    return b if b is not None and b.any() else None


def until_none(params: Any, buffers: Any, sequence: Any, lr: float) -> Any:
    """The arguments of training, each step's gradients cut at the first None."""
    return params, buffers, [list(takewhile(lambda g: g is not None, grads)) for grads in sequence], lr


def mistakes(right: Any, arrays: Arrays) -> Table:
    """See `numpy_ref.exercises.mistakes`."""

    def step_on(change: Any) -> Replacements:
        return {"sgd_step": before(right.sgd_step, change)}

    def stepped(change: Any) -> Replacements:
        return {"sgd_step": after(right.sgd_step, change)}

    def cast(values: Any, dtype: str) -> Any:
        return [arrays.cast(x, dtype) for x in values]

    def zeros(params: Any, buffers: Any) -> Any:
        return [p * 0 if b is None else b for p, b in zip(params, buffers, strict=True)]

    def train(one: Any = usual, params: Any = list, buffers: Any = list) -> Replacements:
        def train_n_steps(p: Any, b: Any, sequence: Any, lr: float, **settings: Any) -> Any:
            p, b = params(p), buffers(b)
            for grads in sequence:
                for i, g in enumerate(grads):
                    p[i], b[i] = one(p[i], g, b[i], lambda p, g, b: right.sgd_step(p, g, b, lr, **settings))
            return p, b

        return {"train_n_steps": train_n_steps}

    def train_on(change: Any) -> Replacements:
        return {"train_n_steps": before(right.train_n_steps, change)}

    def save(change: Any) -> Replacements:
        return {"save_checkpoint": lambda p, b: right.save_checkpoint(p, b) | change(p, b)}

    def resume(
        state: Any = lambda p, b: (p, b), grads: Any = list, off: float = 0.0, without: str = ""
    ) -> Replacements:
        def resume_from_full_checkpoint(checkpoint: Any, sequence: Any, lr: float, **settings: Any) -> Any:
            settings.pop(without, None)
            saved = right.save_checkpoint(**checkpoint)
            return right.train_n_steps(*state(*saved.values()), grads(sequence), lr + off, **settings)

        return {FULL: resume_from_full_checkpoint}

    def resume_on(change: Any) -> Replacements:
        return {FULL: before(right.resume_from_full_checkpoint, change)}

    def buffers(change: Any) -> Replacements:
        return resume(lambda p, b: (p, [change(x) for x in b]))

    def anew(state: Any = lambda p: (p, [None for _ in p]), without: Any = ()) -> Replacements:
        def resume_from_weights_only(params: Any, grads: Any, lr: float, **settings: Any) -> Any:
            settings = {name: value for name, value in settings.items() if name not in without}
            return right.train_n_steps(*state([arrays.copy(p) for p in params]), grads, lr, **settings)

        return {"resume_from_weights_only": resume_from_weights_only}

    table: Table = {
        "step-is-that-of-sgd": [
            (
                "the first gradient was damped: without a buffer it becomes the buffer as it is",
                step(first=lambda g, share: share * g),
            ),
            ("the dampening was left out", step(later=lambda b, g, momentum, share: momentum * b + g)),
            ("a buffer of zeros was taken for none", step_on(lambda p, g, b, lr: (p, g, unless_zeros(b), lr))),
            (
                "sgd_step changed the type of an array: buffer",
                stepped(lambda new: (new[0], arrays.cast(new[1], "float64"))),
            ),
            ("the parameter was rounded to float32", stepped(lambda new: (arrays.cast(new[0], "float32"), new[1]))),
            (
                "the momentum and the dampening changed places",
                step(later=lambda b, g, momentum, share: (1 - share) * b + share * g),
            ),
            (NO_LOOK_AHEAD, step(ahead=lambda g, b, old, momentum: b)),
            (
                "look ahead with the old buffer",
                step(ahead=lambda g, b, old, momentum: g + momentum * old),
                NO_LOOK_AHEAD,
            ),
            ("the rate is in the buffer, and not before it", step_on(lambda p, g, b, lr: (p, lr * g, b, 1.0))),
            ("the learning rate is off by 1e-06", step_on(lambda p, g, b, lr: (p, g, b, lr + 1e-6))),
            ("the gradient itself became the buffer", step(first=lambda g, share: g)),
            ("it writes into an argument", step(new=lambda p, d, lr: p.__isub__(lr * d))),
        ],
        "training-is-step-by-step": [
            (
                "a gradient of None was taken for zeros: the buffer went on, and the parameter",
                train(lambda p, g, b, go: go(p, p * 0 if g is None else g, b)),
            ),
            (
                "a gradient of zeros was taken for None: it makes a buffer, and a buffer moves the parameter",
                train(lambda p, g, b, go: (p, b) if g is None or not g.any() else go(p, g, b)),
            ),
            ("a buffer of zeros was taken for none", train(lambda p, g, b, go: usual(p, g, unless_zeros(b), go))),
            (
                "train_n_steps changed the type of an array: params[0]: expected float32, found float64",
                train(params=lambda params: cast(params, "float64")),
            ),
            (
                "params[2] must have the shape ()",
                train(params=lambda params: [arrays.xp.atleast_1d(p) for p in params]),
            ),
            ("a missing gradient ends the step", train_on(until_none), "train_n_steps is not SGD"),
            (
                "a parameter without a gradient lost its buffer: a buffer is there from the first gradient on",
                train(lambda p, g, b, go: (p, None) if g is None else go(p, g, b)),
            ),
            (
                "no setting was passed on",
                {"train_n_steps": lambda p, b, grads, lr, **settings: right.train_n_steps(p, b, grads, lr)},
            ),
            (TWICE, train_on(lambda p, b, grads, lr: (p, b, grads + grads, lr))),
            ("first step taken twice", train_on(lambda p, b, grads, lr: (p, b, grads[:1] + grads, lr)), TWICE),
        ],
        "checkpoint-holds-everything": [
            (NONE_KEPT, save(lambda p, b: {"buffers": zeros(p, b)})),
            ("every buffer saved as none", save(lambda p, b: {"buffers": [None for _ in b]}), NONE_KEPT),
            (
                "a buffer of zeros saved as no buffer",
                save(lambda p, b: {"buffers": [unless_zeros(x) for x in b]}),
                NONE_KEPT,
            ),
            (
                "the values are the same, but in another type: types are kept",
                save(lambda p, b: {"params": cast(p, "float64")}),
            ),
            (
                "what was an array must be one in the checkpoint, of the same shape",
                save(lambda p, b: {"params": [x.tolist() for x in p]}),
            ),
            ("the buffers were lost", save(lambda p, b: {"buffers": [x if x is None else x * 0 for x in b]})),
            ("only 1 of 4 buffers were saved", save(lambda p, b: {"buffers": [x for x in b if x is not None]})),
            ("the values were rounded", save(lambda p, b: {"params": cast(p, "float32")})),
            ("only 1 of 4 params were saved", save(lambda p, b: {"params": p[:1]})),
        ],
        "checkpoint-is-independent": [
            ("buffers of the checkpoint share memory", save(lambda p, b: {"buffers": list(b)})),
            ("buffers of the checkpoint are the caller's own lists", save(lambda p, b: {"buffers": b})),
            ("params of the checkpoint share memory", save(lambda p, b: {"params": [x[...] for x in p]})),
        ],
        "arguments-are-left-alone": [
            ("writes into params", train(params=same, buffers=same)),
            ("writes into buffers", train(buffers=same)),
            (
                "are the checkpoint's own arrays",
                {FULL: lambda saved, *rest, **settings: right.train_n_steps(*saved.values(), *rest, **settings)},
            ),
            (
                "writes into checkpoint",
                resume_on(lambda saved, *rest: (saved.update(buffers=list(saved["params"])) or saved, *rest)),
            ),
            (
                "writes into grads_sequence",
                train_on(lambda p, b, grads, lr: (p, b, [grads.pop(0) for _ in list(grads)], lr)),
            ),
        ],
        "full-resume-equals-never-stopping": [
            (ZEROS_FOR_NONE, resume(lambda p, b: (p, zeros(p, b)))),
            (BUFFERS_LOST, buffers(lambda b: None)),
            ("a buffer of zeros was taken for none", buffers(unless_zeros)),
            (
                "resume_from_full_checkpoint changed the type of an array: params[0]: expected float32, found float64",
                resume(lambda p, b: (cast(p, "float64"), b)),
            ),
            ("the buffers were lost: zeros stood in their place", buffers(lambda b: b if b is None else b * 0)),
            (
                "buffers of the second and later parameters lost",
                resume(lambda p, b: (p, [b[0], None, None, None])),
                BUFFERS_LOST,
            ),
            *[(said, resume(without=name)) for name, said in NOT_PASSED.items()],
            ("the learning rate is off by 1e-06", resume(off=1e-6)),
            ("the first gradients were left out", resume(grads=lambda grads: grads[1:])),
        ],
        "weights-only-is-a-new-run": [
            (ZEROS_FOR_NONE, anew(lambda p: (p, [x * 0 for x in p]))),
            ("no setting was passed on", anew(without=("momentum", "dampening", "nesterov"))),
            *[(said, anew(without=name)) for name, said in NOT_PASSED.items()],
            (
                "resume_from_weights_only changed the type of an array",
                anew(lambda p: (cast(p, "float64"), [None for _ in p])),
            ),
            (
                "every weight is off by the same number: the weights were not taken as they are",
                anew(lambda p: ([x + 1e-3 for x in p], [None for _ in p])),
            ),
        ],
    }
    if arrays.framework == "numpy":  # in torch, a cast to the same type is no copy: another mistake
        name = "sgd_step changed the type of an array: param: expected float32, found float64"
        table["step-is-that-of-sgd"] += [(name, step(first=lambda g, share: arrays.cast(g, "float64")))]
    return table
