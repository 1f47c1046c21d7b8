"""The verbs `account` and `boundary`: what is computed or declared, beside what is measured here."""

import argparse
import shutil
import textwrap
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from numpy_ref.cli.options import given_settings
from numpy_ref.config import RunConfig
from numpy_ref.console import BROKEN, FAILED, HOLDS, Waiting, flush, say, say_json, table, warn, widths_of, wrapped
from numpy_ref.proof.boundary import ROWS, Row


def run_account(impl: Any, options: argparse.Namespace) -> int:
    """Show computed bytes and operations beside measured ones."""
    from numpy_ref.accounting import account_rows  # here, so that help starts fast

    given = given_settings(options)
    data, config, segments = impl.load_data(options.data), RunConfig(**given), given.get("recompute_segments")
    rows = account_rows(impl, data, config, precision=given.get("precision", ""), segments=segments)
    explained = all(row.explained is not False for row in rows)
    measured = sum(row.measured is not None for row in rows)
    if options.json:
        found = [r._asdict() | {"difference": r.difference, "explained": r.explained} for r in rows]
        say_json({"explained": explained, "measured": measured, "rows": found})
        return HOLDS if explained else BROKEN
    for (model, precision, recompute), group in groupby(rows, key=lambda row: row[:3]):
        say(f"{model}, layers in {precision}, {recompute} computed again\n")
        lines = [
            (r.term, *("-" if n is None else f"{n:,}" for n in (r.computed, r.measured, r.difference)), r.reason or "-")
            for r in group
        ]
        table(("term", "computed", "measured", "difference", "which comes from"), lines)
        say("")
    verdict = "every difference of those is accounted for" if explained else "a difference is NOT accounted for"
    peak = ", but for the peak, which is not derived" if any(row.computed is None for row in rows) else ""
    say(f"{measured} of {len(rows)} rows measured; {verdict}{peak if explained else ''}")
    if any(row.measured is None and row.term == "parameters" for row in rows):
        say("GPT-2's step is measured by: python -m torch_port account")
    return HOLDS if explained else BROKEN


def run_boundary(impl: Any, options: argparse.Namespace) -> int:
    """Show the declared table, or measure its rows."""
    rows = [row for row in ROWS if not options.row or row.name in options.row]
    if getattr(options, "check", False):
        return _check_boundary(impl, rows, options)
    if options.json:
        say_json([row._asdict() for row in rows])
    for row in () if options.json else rows:
        say(f"{row.name}: {row.kind}{_allowance(row)}")
        loose = [f"loose by {row.loose}"] if row.loose else []
        for text in (f"{row.compared}; {row.conditions}", f"because {row.reason}", *loose, f"evidence {row.evidence}"):
            whole = textwrap.TextWrapper(110, "    ", "      ", break_long_words=False, break_on_hyphens=False)
            say(whole.fill(text))  # evidence stays a word that can be copied
    return HOLDS


def _allowance(row: Row) -> str:
    """The number beside a row's kind."""
    if row.tolerance is not None:
        return f" {row.tolerance.absolute:.2g} + {row.tolerance.relative:.2g} times the value"
    return "" if row.false_alarms is None else f", false alarms {row.false_alarms:g}"


def _check_boundary(impl: Any, rows: Sequence[Row], options: argparse.Namespace) -> int:
    """Measure the rows here, and say of each, as soon as it is known, whether it holds."""
    head = ("row", "kind", "not measured", "share", " " * shutil.get_terminal_size((120, 24)).columns)
    widths = widths_of([head, *((row.name, row.kind, "", "", "") for row in rows)])
    results: list[Any] = []
    waiting = Waiting("rows", quiet=options.json)
    waiting.tell(0, len(rows))
    for result in impl.check_boundary([row.name for row in rows]):
        waiting.end()
        if not options.json:
            if not results:
                say(wrapped(("row", "kind", "here", "share", "found"), widths))
            here = "not measured" if result.holds is None else "holds" if result.holds else "BROKEN"
            share = "" if result.share is None else f"{result.share:.0%}"
            found = "; ".join(filter(None, (result.figure, result.note)))
            say(wrapped((result.row, result.kind, here, share, found), widths))
            flush()  # the next one may take minutes
        results.append(result)
        waiting.tell(len(results), len(rows))
    waiting.end()
    verdicts = [result.holds for result in results if result.holds is not None]
    if options.json:
        say_json({"holds": all(verdicts) if verdicts else None, "rows": [result._asdict() for result in results]})
    else:
        say(f"\n{sum(verdicts)} of {len(verdicts)} measured rows hold, {len(results) - len(verdicts)} not measured")
    if not verdicts:
        warn("none of these rows can be measured on this machine, so none is known to hold")
        return FAILED
    return HOLDS if all(verdicts) else BROKEN
