"""The two commands that a script is audited by, as words, and what {steps}, {left} and {path} stand for in them."""

import re
import shlex
from collections.abc import Mapping

NAMES = ("{steps}", "{left}", "{path}")
NEEDED = {"--script": ("{steps}", "{path}"), "--resume": ("{path}",)}


def check_commands(script: str, resume: str) -> None:
    """Refuse commands that cannot be meant, before any of them runs.

    Raises:
        ValueError: it says which of the two.

    Example:
        >>> check_commands("train {steps} {path}", "train {step} {path}")
        Traceback (most recent call last):
        ValueError: --resume: expected no other names in braces than {steps}, {left} and {path}, found {step}
    """
    for option, command in (("--script", script), ("--resume", resume)):
        try:
            words = shlex.split(command)
        except ValueError as error:
            text = f"{option}: expected a command as a shell takes it, found {command!r}: {error}"
            raise ValueError(text) from None
        if missing := [name for name in NEEDED[option] if name not in command]:
            raise ValueError(f"{option}: expected {' and '.join(missing)} in the command, found {command!r}")
        if others := set(re.findall(r"\{[A-Za-z_]\w*\}", " ".join(words))) - set(NAMES):
            known = f"{', '.join(NAMES[:-1])} and {NAMES[-1]}"
            raise ValueError(
                f"{option}: expected no other names in braces than {known}, found {', '.join(sorted(others))}"
            )


def words_of(command: str, values: Mapping[str, str]) -> list[str]:
    """The words of a command, each name in braces replaced by its value.

    Example:
        >>> words_of("train 'a b' --out={path}", {"{path}": "x y"})
        ['train', 'a b', '--out=x y']
    """
    words = shlex.split(command)
    for name, value in values.items():
        words = [word.replace(name, value) for word in words]
    return words
