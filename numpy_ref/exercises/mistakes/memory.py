"""Wrong versions of the account of a training step's memory."""

import math
from typing import Any

import numpy as np

from numpy_ref.exercises.exercise import Arrays, wrapped
from numpy_ref.exercises.mistakes import Replacements, Table, after, before

CLASSES = ("parameters", "gradients", "activations", "optimizer")
LISTS = ("param_shapes", "frozen_shapes", "activation_shapes")


def counted(change: Any) -> Replacements:
    """A way to count elements."""
    return {"count_elements": change}


def moments(sgd: int, with_momentum: int, adam: int) -> Replacements:
    """How many arrays each optimizer keeps."""
    return {"MOMENTS": {"sgd": sgd, "sgd_momentum": with_momentum, "adam": adam}}


def distinct(shapes: Any) -> Any:
    """Each shape once."""
    return list(dict.fromkeys(map(tuple, shapes)))


def mistakes(right: Any, arrays: Arrays) -> Table:
    """See `numpy_ref.exercises.mistakes`."""

    def given(change: Any) -> Replacements:
        return {"training_memory": before(right.training_memory, change)}

    def widths(change: Any) -> Replacements:
        return given(lambda p, f, a, widths, *rest: (p, f, a, widths | change(widths), *rest))

    def in_width(name: str, other: str) -> Replacements:
        return widths(lambda widths: {name: widths[other]})

    def returned(change: Any) -> Replacements:
        return {"training_memory": after(right.training_memory, change)}

    def total(change: Any) -> Replacements:
        return returned(lambda memory: memory | {"total": change(memory)})

    def frozen(*names: str, **changed: int) -> Replacements:
        def training_memory(p: Any, f: Any, a: Any, widths: Any, *rest: Any) -> Any:
            memory = right.training_memory(p, f, a, widths, *rest)
            others = right.training_memory([], f, [], widths, *rest)
            as_trained = right.training_memory(f, [], [], widths | changed, *rest)
            for name in names:
                memory[name] += as_trained[name] - others[name]
            return memory | {"total": sum(memory[name] for name in CLASSES)}

        return {"training_memory": training_memory}

    def once(*names: str) -> tuple[str, Replacements]:
        text = f"shapes that occur twice were counted once, in {' and '.join(names)}: each is an array of its own"
        return text, given(
            lambda *lists_and_rest: (
                *(distinct(s) if n in names else s for n, s in zip(LISTS, lists_and_rest, strict=False)),
                *lists_and_rest[3:],
            )
        )

    def written(into: Any) -> Replacements:
        def training_memory(p: Any, f: Any, a: Any, widths: Any, *rest: Any) -> Any:
            memory = right.training_memory(p, f, a, widths, *rest)
            into(p, f, a, widths)
            return memory

        return {"training_memory": training_memory}

    def shared(memory: Any) -> Any:
        kept.update(memory)
        return kept

    kept: dict[str, int] = {}
    table: Table = {
        "elements-are-counted-exactly": [
            (
                "() is the shape of a single number: the product of no sizes is 1",
                counted(lambda shape: math.prod(shape) if shape else 0),
            ),
            (
                "a size of 0 was skipped, or taken as 1: such an array has no elements",
                counted(lambda shape: math.prod(s or 1 for s in shape)),
            ),
            ("the sizes were added, not multiplied", counted(sum)),
            *[
                (
                    f"the product overflowed in an int of {bits} bits",
                    counted(lambda shape, bits=bits: wrapped(math.prod(shape), bits)),
                )
                for bits in (32, 64)
            ],
            ("must be a Python int, found", counted(lambda shape: np.prod(shape, dtype=np.int64))),
            ("a float is exact to 2**53 only", counted(lambda shape: math.prod(shape) / 1)),
            ("the product was rounded in a float", counted(lambda shape: int(math.prod(shape, start=1.0)))),
        ],
        "each-class-has-its-width": [
            ("the activations were forgotten", given(lambda p, f, a, *rest: (p, f, [], *rest))),
            ("the activations were counted in the parameters' width", in_width("activation", "parameter")),
            ("the gradients were counted in the parameters' width", in_width("gradient", "parameter")),
            ("the result is in bits; a byte has 8", returned(lambda memory: {k: 8 * memory[k] for k in memory})),
            ("elements were counted, not bytes", widths(lambda widths: dict.fromkeys(widths, 1))),
            *[
                (f"the total leaves out the {name}", total(lambda memory, name=name: memory["total"] - memory[name]))
                for name in CLASSES
            ],
            ("the total holds the optimizer twice", total(lambda memory: memory["total"] + memory["optimizer"])),
            ("must return the keys", returned(lambda memory: {name: memory[name] for name in CLASSES})),
            ("must be a Python int, found float", returned(lambda memory: {k: memory[k] / 2**20 for k in memory})),
            once("param_shapes", "activation_shapes"),
            once("activation_shapes"),
        ],
        "optimizers-have-their-moments": [
            ("Adam has two moments for each parameter, m and v", moments(0, 1, 1)),
            ("one moment too many for this optimizer", moments(1, 1, 2)),
            ("the optimizer's moments were forgotten", moments(0, 0, 0)),
            ("the moments were counted in the parameters' width", in_width("moment", "parameter")),
            ("the moments were counted in the gradients' width", in_width("moment", "gradient")),
            once("param_shapes"),
        ],
        "a-master-copy-counts-where-it-is-kept": [
            ("the master copy was forgotten", given(lambda *case: (*case[:-1], False))),
            (
                "a master copy for Adam alone",
                given(lambda *case: (*case[:-1], case[-1] and case[-2] == "adam")),
                "sgd with a master copy has not its bytes",
            ),
            ("a master copy was counted where none is kept", given(lambda *case: (*case[:-1], True))),
            ("the master copy was counted in the parameters' width", in_width("master", "parameter")),
        ],
        "frozen-parameters-have-values-alone": [
            (
                "the frozen parameters were forgotten: they are in memory, too",
                given(lambda p, f, *rest: (p, [], *rest)),
            ),
            (
                "with all parameters frozen, a class has not its bytes: activations: expected 280, found 0",
                given(lambda p, f, a, *rest: (p, f, a if p else [], *rest)),
            ),
            ("gradients of frozen parameters were counted", frozen("gradients")),
            ("moments of frozen parameters were counted", frozen("optimizer", master=0)),
            ("master copies of frozen parameters were counted", frozen("optimizer", moment=0)),
            once("frozen_shapes"),
        ],
        "known-models-have-their-known-size": [
            (
                "16 bytes were counted for each parameter, whatever it has",
                total(lambda memory: 16 * memory["parameters"] // 2 + memory["activations"]),
            ),
            (
                "the total was rounded in a float",
                total(lambda memory: int(sum((memory[name] for name in CLASSES), 0.0))),
            ),
        ],
        "arguments-are-left-alone": [
            ("it writes into param_shapes", written(lambda p, f, a, widths: p.extend(f))),
            ("it writes into activation_shapes, or removes", written(lambda p, f, a, widths: a.clear())),
            ("it writes into widths", written(lambda p, f, a, widths: widths.update(master=0))),
            ("a dict is kept between calls", returned(shared)),
        ],
    }
    if arrays.framework == "torch":
        numel = counted(lambda shape: arrays.xp.Size(shape).numel())
        table["elements-are-counted-exactly"] += [("by numel", numel, "the product overflowed in an int of 64 bits")]
    return table
