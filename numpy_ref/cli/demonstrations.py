"""The verbs `demo`, `walk` and `range`: what resuming and formats of 16 bits lose, run and shown."""

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

from numpy_ref.config import describe_config
from numpy_ref.console import BROKEN, FAILED, HOLDS, Waiting, say, say_json, table, warn


def run_demo(impl: Any, options: argparse.Namespace) -> int:
    """Run the whole experiment, and show its table and figure."""
    from numpy_ref.cli import demo  # here, so that help starts fast

    _check_figure(options.figure)
    start = time.perf_counter()
    waiting, words = Waiting("resumes", quiet=options.json), ("--device", options.device) if "device" in options else ()
    with tempfile.TemporaryDirectory() as folder:
        try:
            result = demo.run_demo(impl, Path(folder), words, waiting.tell)
        finally:
            waiting.end()
    drawn, fault = _try_figure(result, options.figure)
    status = (HOLDS if fault is None else FAILED) if result.right else BROKEN
    if fault is not None:
        warn(drawn)
    if options.json:
        rows = [
            {"resume": o.resume, "left_out": o.left_out, "right": o.right, "largest": o.largest}
            | {k: v for k, v in o.verdict._asdict().items() if k != "leaves"}
            for o in result.outcomes
        ]
        say_json(
            {
                "right": result.right,
                "digest": result.digest,
                "expected_digest": demo.DIGEST,
                "figure": drawn,
                "outcomes": rows,
            }
        )
        return status
    config = describe_config(demo.CONFIG)
    say(f"digits, {demo.STEPS} steps, stopped after step {demo.STOP} and resumed; {config}\n")
    table(
        ("left out", "outcome", "first shows at", "largest", "likely cause"),
        [
            (
                o.left_out,
                ("bitwise" if o.verdict.holds else "differs") + ("" if o.right else ": WRONG"),
                "-" if o.verdict.holds else f"step {o.verdict.step} {o.verdict.leaf}",
                f"{o.largest:.2g}",
                o.verdict.cause or "-",
            )
            for o in result.outcomes
        ],
    )
    say(f"\nfinal state {result.digest}")
    say("the committed digest" if result.digest == demo.DIGEST else f"NOT the committed digest {demo.DIGEST}")
    say(
        f"{drawn}\n{'every outcome is the right one' if result.right else 'an outcome is WRONG'}"
        f" ({time.perf_counter() - start:.1f} s)"
    )
    return status


def _check_figure(path: Path) -> None:
    """Refuse, before the experiment, what could not be drawn after it."""
    if path.suffix not in (".svg", ".png", ".pdf"):
        raise ValueError(f"--figure: expected a file that ends in .svg, .png or .pdf, found {str(path)!r}")
    if not path.parent.is_dir():
        raise ValueError(f"--figure: expected a file in a directory that is there, found {str(path)!r}")


def _try_figure(result: Any, path: Path) -> tuple[str, Exception | None]:
    """Draw, and say where or why not; a path that does not serve must not cost the table."""
    try:
        from numpy_ref.cli.figure import draw_demo
    except ImportError:
        return "no figure: it needs matplotlib; install the 'cli' extra, pip install '.[cli]'", None
    try:
        draw_demo(result, path)
    except (OSError, ValueError) as error:
        return f"no figure {path}: {error}", error
    return f"figure {path}", None


def run_walk(impl: Any, options: argparse.Namespace) -> int:
    """Follow one resume leaf by leaf, and show the traps."""
    from numpy_ref.cli.walk import commands  # here, so that help starts fast

    return commands.run_walk(impl, options)


def run_range(options: argparse.Namespace) -> int:
    """Show what formats of 16 bits hold, and what they lose."""
    from numpy_ref.cli import number_line  # here, so that help starts fast

    result = number_line.run_range(steps=options.steps, scale=options.scale)
    if options.json:
        say_json(result.as_json())
    else:
        say("\n".join(number_line.lines(result)))
    return HOLDS
