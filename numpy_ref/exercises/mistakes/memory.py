"""Wrong accounts of the memory of a training step."""

from collections.abc import Callable
from typing import Any

import numpy as np

from numpy_ref.exercises.exercise import Arrays, wrapped
from numpy_ref.exercises.memory import CLASSES, Case
from numpy_ref.exercises.mistakes import Replacements, Row, Table, after

NO_MASTER = "the master copy was forgotten"


def mistakes(right: Any, arrays: Arrays) -> Table:
    """See `numpy_ref.exercises.mistakes`."""

    def counted(count: Callable[[Any, int], Any]) -> Replacements:
        return {"count_elements": lambda shape: count(tuple(shape), right.count_elements(shape))}

    def of(**parts: Callable[[Any], Any]) -> Replacements:
        """The right account of other arguments."""

        def training_memory(*arguments: Any) -> Any:
            case = Case(*arguments)
            return right.training_memory(*case._replace(**{name: part(case) for name, part in parts.items()}))

        return {"training_memory": training_memory}

    def changed(change: Callable[[Any, Any], Any]) -> Replacements:
        """The right account with a part changed; the total follows if it is not changed itself."""

        def training_memory(*arguments: Any) -> Any:
            memory = right.training_memory(*arguments)
            changes = change(memory, Case(*arguments))
            return memory | {"total": sum((memory | changes)[name] for name in CLASSES)} | changes

        return {"training_memory": training_memory}

    def in_width(words: str, name: str, others: str) -> Row:
        return f"{words} in the {others}' width", of(widths=lambda c: c.widths | {name: c.widths[others[:-1]]})

    def once(*lists: str) -> Row:
        words = {"trained": "param_shapes", "frozen": "frozen_shapes", "kept": "activation_shapes"}
        text = " and ".join(words[name] for name in lists)
        parts = {name: lambda c, name=name: set(map(tuple, getattr(c, name))) for name in lists}
        return f"shapes that occur twice were counted once, in {text}: each is an array of its own", of(**parts)

    def with_frozen(name: str) -> Replacements:
        return changed(lambda m, c: {name: right.training_memory([*c.trained, *c.frozen], *c[1:])[name]})

    def total_without(name: str) -> Replacements:
        return changed(lambda m, c: {"total": m["total"] - m[name]})

    def masters_of_frozen(m: Any, c: Any) -> Any:
        frozen = right.training_memory(c.frozen, [], [], c.widths, "sgd", c.master)
        return {"optimizer": m["optimizer"] + frozen["optimizer"]}

    kept: dict[str, int] = {}
    return {
        "elements-are-counted-exactly": [
            ("() is the shape of a single number: the product of no sizes is 1", counted(lambda s, n: n if s else 0)),
            (
                "a size of 0 was skipped, or taken as 1: such an array has no elements",
                counted(lambda s, n: right.count_elements([size or 1 for size in s])),
            ),
            ("the sizes were added, not multiplied", counted(lambda s, n: sum(s))),
            ("the product overflowed in an int of 32 bits", counted(lambda s, n: wrapped(n, 32))),
            ("the product overflowed in an int of 64 bits", counted(lambda s, n: wrapped(n, 64))),
            ("must be a Python int, found", counted(lambda s, n: np.int64(n))),
            ("a float is exact to 2**53 only", counted(lambda s, n: float(n))),
            ("the product was rounded in a float", counted(lambda s, n: int(float(n)))),
        ],
        "each-class-has-its-width": [
            ("the activations were forgotten", of(kept=lambda c: ())),
            in_width("the activations were counted", "activation", "parameters"),
            in_width("the gradients were counted", "gradient", "parameters"),
            once("trained", "kept"),
            once("kept"),
            ("the result is in bits; a byte has 8", of(widths=lambda c: {name: 8 * n for name, n in c.widths.items()})),
            ("elements were counted, not bytes", of(widths=lambda c: dict.fromkeys(c.widths, 1))),
            *[(f"the total leaves out the {name}", total_without(name)) for name in CLASSES],
            ("the total holds the optimizer twice", changed(lambda m, c: {"total": m["total"] + m["optimizer"]})),
            ("must return the keys", {"training_memory": after(right.training_memory, lambda m: m.popitem() and m)}),
            ("must be a Python int, found float", changed(lambda m, c: {name: n / 2**20 for name, n in m.items()})),
        ],
        "optimizers-have-their-moments": [
            (
                "Adam has two moments for each parameter, m and v",
                of(optimizer=lambda c: "sgd" if c.optimizer == "sgd" else "sgd_momentum"),
            ),
            (
                "one moment too many for this optimizer",
                of(optimizer=lambda c: {"sgd": "sgd_momentum"}.get(c.optimizer, "adam")),
            ),
            ("the optimizer's moments were forgotten", of(optimizer=lambda c: "sgd")),
            in_width("the moments were counted", "moment", "parameters"),
            in_width("the moments were counted", "moment", "gradients"),
            once("trained"),
        ],
        "a-master-copy-counts-where-it-is-kept": [
            (NO_MASTER, of(master=lambda c: False)),
            ("it is counted for Adam alone", of(master=lambda c: c.master and c.optimizer == "adam"), NO_MASTER),
            ("a master copy was counted where none is kept", of(master=lambda c: True)),
            in_width("the master copy was counted", "master", "parameters"),
        ],
        "frozen-parameters-have-values-alone": [
            ("the frozen parameters were forgotten: they are in memory, too", of(frozen=lambda c: ())),
            (
                "the activations were forgotten where no parameter is trained",
                of(kept=lambda c: c.kept if c.trained else ()),
            ),
            ("gradients of frozen parameters were counted", with_frozen("gradients")),
            ("moments of frozen parameters were counted", with_frozen("optimizer")),
            ("master copies of frozen parameters were counted", changed(masters_of_frozen)),
            once("frozen"),
        ],
        "known-models-have-their-known-size": [
            (
                "the total has 16 bytes for each parameter, whatever is kept of it",
                changed(lambda m, c: {"total": 16 * sum(map(right.count_elements, c.trained)) + m["activations"]}),
            ),
            ("the total was rounded in a float", changed(lambda m, c: {"total": int(float(m["total"]))})),
        ],
        "arguments-are-left-alone": [
            ("it writes into param_shapes", of(trained=lambda c: c.trained.__iadd__(c.frozen))),
            ("it writes into activation_shapes, or removes", of(kept=lambda c: [c.kept.pop() for _ in list(c.kept)])),
            ("it writes into widths", changed(lambda m, c: c.widths.update(master=0) or {})),
            (
                "a dict is kept between calls",
                {"training_memory": after(right.training_memory, lambda m: kept.update(m) or kept)},
            ),
        ],
    }
