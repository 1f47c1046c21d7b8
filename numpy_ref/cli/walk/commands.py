"""The verb `walk`: what it takes, and what it prints."""

import argparse
import tempfile
from pathlib import Path
from typing import Any

from numpy_ref.cli.walk.resume import CONFIG, DIGEST, PLACES, STEPS, STOP, Walk, walk_through
from numpy_ref.cli.walk.traps import Trap, all_traps
from numpy_ref.config import describe_config
from numpy_ref.console import BROKEN, HOLDS, say, say_json, table


def run_walk(impl: Any, options: argparse.Namespace) -> int:
    """Walk, run the traps, draw them if asked to, and print it all."""
    if options.figures is not None:
        draw = _pen()  # before the walk: what cannot be drawn is said at once
        options.figures.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        walk = walk_through(impl, Path(folder))
        traps = all_traps(impl, walk, Path(folder))
    figures = []
    if options.figures is not None:
        for trap in traps:
            figures.append(options.figures / f"walk-{trap.name}.svg")
            draw(trap, figures[-1])
    holds = walk.holds and all(trap.holds for trap in traps)
    if options.json:
        say_json(_as_json(walk, traps, figures, holds))
    else:
        _print(walk, traps, figures, holds)
    return HOLDS if holds else BROKEN


def _pen() -> Any:
    """What draws a trap."""
    try:
        from numpy_ref.cli.walk.figures import draw_trap
    except ImportError as error:
        raise ValueError("--figures needs matplotlib; install the 'cli' extra, pip install '.[cli]'") from error
    return draw_trap


def _as_json(walk: Walk, traps: list[Trap], figures: list[Path], holds: bool) -> dict[str, Any]:
    leaves = [
        place._asdict() | row._asdict() | {"holds": row.holds} for place, row in zip(PLACES, walk.rows, strict=True)
    ]
    return {
        "holds": holds,
        "digest": walk.resumed,
        "never_stopped": walk.never_stopped,
        "expected_digest": DIGEST,
        "leaves": leaves,
        "traps": [trap._asdict() for trap in traps],
        "figures": [str(path) for path in figures],
    }


def _print(walk: Walk, traps: list[Trap], figures: list[Path], holds: bool) -> None:
    config = describe_config(CONFIG)
    say(f"digits, {STEPS} steps, stopped after step {STOP}, saved, loaded into a new object; {config}\n")
    table(("leaf", "NumPy: run.", "PyTorch: run.", "what it is"), [(p.leaf, p.numpy, p.torch, p.what) for p in PLACES])
    say("")
    head = ("leaf", "at the stop", "in the file", "loaded", "resumed, end", "no stop, end", "stored as")
    table(head, [(row.leaf, *map(_short, row[1:6]), row.stored + ": DIFFERS" * (not row.holds)) for row in walk.rows])
    say(f"\nresumed  {walk.resumed}\nno stop  {walk.never_stopped}")
    say("the committed digest\n" if walk.resumed == DIGEST else f"NOT the committed digest {DIGEST}\n")
    if not walk.verdict.holds:
        say(f"{walk.verdict}\n")
    table(("trap", "what it does"), [(trap.name, ("" if trap.holds else "NOT SHOWN: ") + trap.text) for trap in traps])
    say("")
    for path in figures:
        say(f"figure {path}")
    say("every leaf came back, and every trap is shown" if holds else "something is WRONG")


def _short(value: Any) -> str:
    """A value in a cell: of a digest its head, of a float six digits."""
    return value[:8] if isinstance(value, str) else f"{value:.6g}" if isinstance(value, float) else str(value)
