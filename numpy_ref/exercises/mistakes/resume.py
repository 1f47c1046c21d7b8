"""Wrong versions of Adam's four functions."""

from functools import partial
from typing import Any

from numpy_ref.exercises.exercise import Arrays
from numpy_ref.exercises.mistakes import Replacements, Table, after, before

UNTIL_LARGE = 10**9  # a t so large that there is no bias correction
LEFT_OUT = "the first gradients were left out, or the last"
LR_MOVED = "the first step moved every weight by the learning rate"


def save(right: Any, change: Any) -> Replacements:
    """A save in which a part of the checkpoint is another: change(params, m_list, v_list, t) gives it."""
    return {"save_checkpoint": lambda *state: right.save_checkpoint(*state) | change(*state)}


def mistakes(right: Any, arrays: Arrays) -> Table:
    """See `numpy_ref.exercises.mistakes`."""
    saved = partial(save, right)

    def cast(values: Any, dtype: str) -> Any:
        return [arrays.cast(x, dtype) for x in values]

    def rounded(values: Any) -> Any:
        shorter = ["float32" if "64" in str(x.dtype) else "float16" for x in values]
        return [arrays.cast(arrays.cast(x, name), str(x.dtype)[-7:]) for x, name in zip(values, shorter, strict=True)]

    def zeros(values: Any) -> Any:
        return [arrays.xp.zeros_like(x) for x in values]

    def whole(change: Any) -> Replacements:
        return saved(lambda p, m, v, t: {"params": change(p), "m_list": change(m), "v_list": change(v)})

    def adam(change: Any) -> Replacements:
        return {"adam_step": before(right.adam_step, change)}

    def formula(correct: Any, root: Any) -> Replacements:
        def adam_step(params: Any, grads: Any, m_list: Any, v_list: Any, t: int, lr: float) -> Any:
            _, new_m, new_v = right.adam_step(params, grads, m_list, v_list, t, lr)
            moments = zip(params, new_m, new_v, strict=True)
            return [p - lr * correct(m, t) / root(v / (1 - 0.999**t)) for p, m, v in moments], new_m, new_v

        return {"adam_step": adam_step}

    def train_on(change: Any) -> Replacements:
        return {"train_n_steps": before(right.train_n_steps, change)}

    def counted(count: Any, end: Any = lambda t, start, steps: t) -> Replacements:
        def train_n_steps(p: Any, m: Any, v: Any, start: int, sequence: Any, lr: float) -> Any:
            t = start
            for grads in sequence:
                (p, m, v), t = right.adam_step(p, grads, m, v, t, lr), count(t)
            return p, m, v, end(t, start, len(sequence))

        return {"train_n_steps": train_n_steps}

    def written(into: Any) -> Replacements:
        def train_n_steps(p: Any, m: Any, v: Any, t: int, sequence: Any, lr: float) -> Any:
            new = right.train_n_steps(p, m, v, t, list(sequence), lr)
            into(p, m, sequence, new)
            return new

        return {"train_n_steps": train_n_steps}

    def refill(params: Any, new: Any) -> None:
        for old, now in zip(params, new, strict=True):
            old[...] = now

    def resume(change: Any) -> Replacements:
        return {
            "resume_from_full_checkpoint": lambda checkpoint, grads, lr: right.train_n_steps(
                *change(*right.save_checkpoint(**checkpoint).values(), grads, lr)
            )
        }

    def writing(into: Any) -> Replacements:
        def resume_from_full_checkpoint(checkpoint: Any, grads: Any, lr: float) -> Any:
            new = right.resume_from_full_checkpoint(checkpoint, grads, lr)
            into(checkpoint, new)
            return new

        return {"resume_from_full_checkpoint": resume_from_full_checkpoint}

    def anew(change: Any, train: Any = right.train_n_steps) -> Replacements:
        return {
            "resume_from_weights_only": lambda params, grads, lr: train(
                *change([arrays.copy(p) for p in params], zeros(params), zeros(params), 1, grads, lr)
            )
        }

    def without_axes(p: Any, m: Any, v: Any, t: int, sequence: Any, lr: float) -> Any:
        for grads in sequence:
            p, m, v, t = right.train_n_steps(p, m, v, t, [grads], lr)
            m, v = ([x if x.ndim else x * 0 for x in moments] for moments in (m, v))
        return p, m, v, t

    def wrong_stretch(on: Any) -> Any:  # for a resume and for a new run
        return [
            (LEFT_OUT, on(lambda p, m, v, t, grads, lr: (p, m, v, t, grads[1:], lr))),
            ("last left out", on(lambda p, m, v, t, grads, lr: (p, m, v, t, grads[:-1], lr)), LEFT_OUT),
            (
                "the gradients were gone through twice",
                on(lambda p, m, v, t, grads, lr: (p, m, v, t, grads + grads, lr)),
            ),
            (
                "the gradients were taken in reverse order",
                on(lambda p, m, v, t, grads, lr: (p, m, v, t, grads[::-1], lr)),
            ),
            ("the learning rate is off by 1e-06", on(lambda *state: (*state[:-1], state[-1] + 1e-6))),
            ("the learning rate is off by a millionth of it", on(lambda *state: (*state[:-1], state[-1] * (1 + 1e-6)))),
            ("the learning rate is off by -0.049: it was 0.001", on(lambda *state: (*state[:-1], 0.001))),
        ]

    last: dict[str, Any] = {}
    table: Table = {
        "checkpoint-holds-everything": [
            ("the values were rounded to float32 by the save", whole(lambda values: cast(values, "float32"))),
            (
                "the values are the same, but float32 became float64: types are kept",
                whole(lambda values: cast(values, "float64")),
            ),
            (
                "what was an array must be one in the checkpoint",
                saved(lambda p, *_: {"params": [x.tolist() for x in p]}),
            ),
            ("shapes are kept", saved(lambda p, *_: {"params": [x.reshape(-1) for x in p]})),
            ("only 3 of 4 arrays were saved", saved(lambda p, *_: {"params": [x for x in p if 0 not in x.shape]})),
            ("only 1 of 4 arrays were saved", whole(lambda values: values[:1])),
            (
                "last moment dropped",
                saved(lambda p, m, *_: {"m_list": m[:-1]}),
                "only 3 of 4 arrays were saved",
            ),
            ("zeros were saved", saved(lambda p, m, *_: {"m_list": [x * 0 for x in m]})),
            (
                "t missing",
                {"save_checkpoint": after(right.save_checkpoint, lambda c: {k: c[k] for k in c if k != "t"})},
            ),
            ("step besides", saved(lambda p, m, v, t: {"step": t - 1})),
            ("t must be an int", saved(lambda p, m, v, t: {"t": float(t)})),
            ("cannot count so far", saved(lambda p, m, v, t: {"t": t if t < 2**24 else 2**24})),
            ("t saved as steps done", saved(lambda p, m, v, t: {"t": t - 1}), "or was changed"),
        ],
        "checkpoint-is-independent": [
            (
                "m_list and v_list of the checkpoint share memory",
                saved(lambda p, m, v, t: {"m_list": list(m), "v_list": list(v)}),
            ),
            ("m_list of the checkpoint are the caller's own lists", saved(lambda p, m, v, t: {"m_list": m})),
            (
                "v_list of the checkpoint are the caller's own lists",
                saved(lambda p, m, v, t: {"v_list": [v.__setitem__(slice(None), [x * 1 for x in v]), v][1]}),
            ),
            ("params and m_list and v_list of the checkpoint share memory", whole(list)),
            ("params of the checkpoint share memory", saved(lambda p, *_: {"params": [x[...] for x in p]})),
            (
                "v_list of the checkpoint share memory",
                saved(lambda p, m, v, t: {"v_list": [x.reshape(x.shape) for x in v]}),
            ),
        ],
        "arguments-are-left-alone": [
            ("train_n_steps writes into params", written(lambda p, m, sequence, new: refill(p, new[0]))),
            ("train_n_steps writes into m_list", written(lambda p, m, sequence, new: refill([m], [new[1]]))),
            ("train_n_steps writes into grads_sequence", written(lambda p, m, sequence, new: sequence.clear())),
            ("or removes some", resume(lambda p, m, v, t, grads, lr: (p, m, v, t, [grads.pop()], lr))),
        ],
        "steps-are-those-of-adam": [
            (
                "the bias correction was left out",
                adam(lambda p, g, m, v, t, lr: (p, g, m, v, UNTIL_LARGE, lr)),
            ),
            (
                "the bias correction of m was left out",
                formula(lambda m, t: m, lambda v_hat: arrays.xp.sqrt(v_hat) + 1e-8),
            ),
            (
                "eps stood within the root",
                formula(lambda m, t: m / (1 - 0.9**t), lambda v_hat: arrays.xp.sqrt(v_hat + 1e-8)),
            ),
            (
                "train_n_steps returned a value that is not finite",
                {"adam_step": lambda *arguments: right.adam_step(*arguments, eps=0.0)},
            ),
            (
                "the bias correction was left out from t = 100 on",
                adam(lambda p, g, m, v, t, lr: (p, g, m, v, t if t < 100 else UNTIL_LARGE, lr)),
            ),
            ("so t must grow by 1", counted(lambda t: t + 1 if t < 20 else 1)),
            ("1 gradients were given, so t must grow by 1", counted(lambda t: t)),
            (
                "t is one too large in every step: it was raised before the step",
                adam(lambda p, g, m, v, t, lr: (p, g, m, v, t + 1, lr)),
            ),
            (
                "t was counted on, and handed to every step the same",
                counted(lambda t: t, lambda t, start, steps: start + steps),
            ),
            ("t must grow by", train_on(lambda p, m, v, t, grads, lr: (p, m, v, t, grads + grads, lr))),
            (
                "no step was taken: were the gradients used up before?",
                {"train_n_steps": lambda p, m, v, t, grads, lr: (p, m, v, t + len(grads))},
            ),
            (
                "changed the type of an array: params[0]: expected float32, found float64; types are kept: zeros_like",
                train_on(lambda p, *rest: (cast(p, "float64"), *rest)),
            ),
            (
                "types are kept: the values were rounded",
                train_on(lambda p, m, v, *rest: (p, m, cast(v, "float32"), *rest)),
            ),
            (
                "params[3] must have the shape ()",
                train_on(lambda p, *rest: ([arrays.xp.atleast_1d(x) for x in p], *rest)),
            ),
            ("the learning rate is off by 1e-06", adam(lambda *state: (*state[:-1], state[-1] + 1e-6))),
            ("the learning rate is off by -0.049: it was 0.001", adam(lambda *state: (*state[:-1], 0.001))),
        ],
        "full-resume-equals-never-stopping": [
            (
                f"m and v were lost, and t was reset to 1: a new run on the old weights; {LR_MOVED}",
                resume(lambda p, m, v, t, *rest: (p, zeros(m), zeros(v), 1, *rest)),
            ),
            (
                "m and v were lost: moments of zero, while t went on",
                resume(lambda p, m, v, *rest: (p, zeros(m), zeros(v), *rest)),
            ),
            (
                "v was lost: second moments of zero, so the first steps are far too long",
                resume(lambda p, m, v, *rest: (p, m, zeros(v), *rest)),
            ),
            (
                "m was lost: first moments of zero, so the direction is forgotten",
                resume(lambda p, m, v, *rest: (p, zeros(m), v, *rest)),
            ),
            (
                "m and v change places",
                resume(lambda p, m, v, *rest: (p, v, [abs(x) for x in m], *rest)),
            ),
            (
                "the moments of the second and later arrays were lost",
                resume(lambda p, m, v, *rest: (p, [m[0], *zeros(m[1:])], [v[0], *zeros(v[1:])], *rest)),
            ),
            (
                "t was reset to 1: the bias correction starts again",
                resume(lambda p, m, v, t, *rest: (p, m, v, 1, *rest)),
            ),
            (
                "t is one too large: it was counted as steps done, or raised before the step",
                resume(lambda p, m, v, t, *rest: (p, m, v, t + 1, *rest)),
            ),
            (
                "t is one too small: steps done were taken for the next step",
                resume(lambda p, m, v, t, *rest: (p, m, v, max(t - 1, 1), *rest)),
            ),
            (
                "the state was rounded to a shorter type",
                resume(lambda p, m, v, *rest: (*(map(rounded, (p, m, v))), *rest)),
            ),
            (
                "resume_from_full_checkpoint changed the type of an array: m_list[0]: expected float32, found float64",
                resume(lambda p, m, *rest: (p, cast(m, "float64"), *rest)),
            ),
            *wrong_stretch(resume),
        ],
        "resume-leaves-the-checkpoint": [
            ("or writes its keys", writing(lambda checkpoint, new: checkpoint.update(t=new[-1] + 1))),
            (
                "checkpoint kept up to date",
                writing(lambda checkpoint, new: checkpoint.update(zip(checkpoint, new, strict=True))),
                "or writes its keys",
            ),
            (
                "are the checkpoint's own arrays",
                {"resume_from_full_checkpoint": lambda saved, *rest: right.train_n_steps(*saved.values(), *rest)},
            ),
        ],
        "weights-only-is-a-new-run": [
            (
                "t was kept: the new run began with t = 5, so its first steps are shorter than Adam's first",
                anew(lambda p, m, v, t, *rest: (p, m, v, 5, *rest)),
            ),
            ("t was reset to 0", anew(lambda p, m, v, t, *rest: (p, m, v, 0, *rest))),
            (
                "every weight is off by the same number, 0.001: the weights were not taken as they are",
                anew(lambda p, *rest: ([x + 1e-3 for x in p], *rest)),
            ),
            ("m began with ones", anew(lambda p, m, *rest: (p, [x + 1 for x in m], *rest))),
            (
                "resume_from_weights_only changed the type of an array: v_list[0]: expected float32, found float64",
                anew(lambda p, m, v, *rest: (p, m, cast(v, "float64"), *rest)),
            ),
            (
                "resume_from_weights_only changed the type of an array: params[0]",
                anew(lambda p, *rest: (cast(p, "float64"), *rest)),
            ),
            (
                "only arrays without axes are wrong: as in 0 * p, they become numbers, which *= cannot change",
                anew(lambda *state: state, without_axes),
            ),
            *wrong_stretch(anew),
        ],
        "runs-do-not-mix": [
            (
                "the checkpoints of two runs mix",
                {
                    "save_checkpoint": lambda *state: [last.update(right.save_checkpoint(*state)), dict(last)][1],
                    "resume_from_full_checkpoint": lambda checkpoint, *rest: right.resume_from_full_checkpoint(
                        checkpoint | last, *rest
                    ),
                },
            ),
        ],
    }
    if arrays.framework == "numpy":
        table["checkpoint-holds-everything"] += [
            (
                "the values are in another order: the array that was saved is transposed in memory",
                saved(lambda p, m, *_: {"m_list": [x.ravel(order="K").copy().reshape(x.shape) for x in m]}),
            )
        ]
        table["steps-are-those-of-adam"] += [
            ("0.9**t is then a float64 of NumPy", counted(lambda t: arrays.xp.int64(t + 1)))
        ]
    return table
