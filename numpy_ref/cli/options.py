"""Options of several verbs: how they are added to a parser, and what they amount to."""

import argparse
import dataclasses
import types
from collections.abc import Sequence
from typing import Any

from numpy_ref.checkpoint import store
from numpy_ref.config import RunConfig

SIZES = (  # settings that what a step holds and computes depends on, temporary arrays included
    "hidden",
    "dropout",
    "batch_norm",
    "noise",
    "batch_size",
    "accumulation",
    "optimizer",
    "amsgrad",
    "momentum",
    "dampening",
    "nesterov",
    "weight_decay",
    "precision",
    "recompute_segments",
)


KEPT = store.Retention(3)  # what a directory keeps unless the words say otherwise


def add_retention(parser: Any) -> None:
    """Options for `retention_of`."""
    text = "newest checkpoints to keep; 0: all (default: %(default)s)"
    parser.add_argument("--keep", type=whole, default=KEPT.keep_last, metavar="N", help=text)
    text = "keep those of every Nth step too; 0: none for that (default: %(default)s)"
    parser.add_argument("--keep-every", type=whole, default=KEPT.keep_every, metavar="N", help=text)
    text = "keep the first that holds the best weights too; every later one holds a copy of them (default: no)"
    parser.add_argument("--keep-best", action=argparse.BooleanOptionalAction, default=KEPT.keep_best, help=text)


def retention_of(options: argparse.Namespace) -> store.Retention:
    """What a directory keeps, by the options of `add_retention`."""
    return store.Retention(options.keep, options.keep_every, options.keep_best)


def add_config(parser: argparse.ArgumentParser, title: str, names: Sequence[str] | None = None) -> None:
    """One option for each field of RunConfig, or for those named; only those given appear in the result."""
    group = parser.add_argument_group(title)
    for field in dataclasses.fields(RunConfig):
        if names is not None and field.name not in names:
            continue
        kind: Any = field.type
        default = ",".join(map(str, field.default)) if isinstance(field.default, tuple) else field.default
        default = "--steps" if field.name == "total_steps" else default
        extra: dict[str, Any] = {"help": f"{field.metadata['help']} (default: {default})", "default": argparse.SUPPRESS}
        if kind is bool:
            extra["action"] = argparse.BooleanOptionalAction
        elif field.metadata["choices"]:
            extra["choices"] = field.metadata["choices"]
        else:
            extra["type"] = sizes if isinstance(kind, types.GenericAlias) else kind
            extra["metavar"] = "N,N" if isinstance(kind, types.GenericAlias) else "N" if kind is int else "X"
        group.add_argument(f"--{field.name.replace('_', '-')}", **extra)


def given_settings(options: argparse.Namespace) -> dict[str, Any]:
    """The settings of the run that the command line names."""
    return {f.name: getattr(options, f.name) for f in dataclasses.fields(RunConfig) if hasattr(options, f.name)}


def whole(text: str) -> int:
    """A whole number >= 0."""
    try:
        value = int(text)
    except ValueError:
        value = -1
    if value < 0:
        raise argparse.ArgumentTypeError(f"expected a whole number >= 0, found {text!r}")
    return value


def sizes(text: str) -> tuple[int, ...]:
    """Sizes with commas between them."""
    try:
        return tuple(int(word) for word in text.split(",") if word.strip())
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected sizes such as 128,128, found {text!r}") from None
