"""Wrong ways to replace a file: other steps than the right ones, or the right ones in another order."""

import os
import secrets
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from numpy_ref.exercises.exercise import Arrays
from numpy_ref.exercises.mistakes import Replacements, Table


def sync_lightly(c: Any) -> None:
    """Synchronise what is open, if it can be."""
    with suppress(OSError):
        os.fsync(c.opened)


STEPS: dict[str, Any] = {  # each of a call
    "keep": lambda c: shutil.copymode(max(c.target, c.temporary, key=os.path.exists), c.temporary),
    "write": lambda c: c.file.write(c.data),
    "write-once": lambda c: os.write(c.file.fileno(), c.data),
    "flush": lambda c: c.file.flush(),
    "sync": lambda c: os.fsync(c.file.fileno()),
    "rename": lambda c: os.replace(c.temporary, c.target),
    "copy": lambda c: shutil.copyfile(c.temporary, c.target),
    "remove": lambda c: os.unlink(c.temporary),
    "remove-old": lambda c: Path(c.target).unlink(missing_ok=True),
    "umask": lambda c: os.umask(0),
    "mode-644": lambda c: os.chmod(c.temporary, 0o644),
    "open": lambda c: setattr(c, "opened", os.open(c.directory, os.O_RDONLY)),
    "open-old": lambda c: setattr(c, "opened", os.open(c.target, os.O_RDONLY)),
    "open-twin": lambda c: setattr(c, "opened", os.dup(c.file.fileno())),
    "sync-opened": lambda c: os.fsync(c.opened),
    "sync-lightly": sync_lightly,
    "close": lambda c: os.close(c.opened),
}

BOTH = "both use one temporary: its name must be another in every call"
DIRECTORY_OPEN = "when fsync of the directory fails, a descriptor is left open"
GO_ON = "os.write took fewer bytes than it was given, as it may: go on with the rest"
NOT_FLUSHED = "the system had 0 bytes"
NOT_SYNCHRONISED = "it was not synchronised by then"


def own(c: Any) -> str:
    """The path of a temporary that no other call has."""
    return os.path.join(c.directory, f".{c.name}.{secrets.token_hex(8)}.tmp")


USUAL: dict[str, Any] = {
    "inside": "keep write flush sync",  # while the temporary is open
    "then": "rename",
    "failed": "remove",  # after an error before that
    "after": "open sync-opened",  # of the directory
    "last": "close",  # after that, also if it fails
    "target": os.path.abspath,
    "temporary": own,
    "flags": os.O_EXCL,
    "mode": 0o666,
    "buffering": -1,
    "caught": BaseException,
    "swallowed": (),
}


def way(**other: Any) -> Replacements:
    """The usual way, with some of its parts replaced."""
    usual = SimpleNamespace(**USUAL | other)

    def atomic_write(path: Any, data: bytes) -> None:
        c = SimpleNamespace(target=usual.target(path), data=data)
        c.directory, c.name = os.path.split(c.target)
        c.temporary = usual.temporary(c)

        def go(steps: str) -> None:
            for step in steps.split():
                STEPS[step](c)

        descriptor = os.open(c.temporary, os.O_WRONLY | os.O_CREAT | usual.flags, usual.mode)
        with suppress(usual.swallowed):
            try:
                with os.fdopen(descriptor, "wb", usual.buffering) as c.file:
                    go(usual.inside)
                go(usual.then)
            except usual.caught:
                go(usual.failed)
                raise
            try:
                go(usual.after)
            finally:
                go(usual.last)

    return {"atomic_write": atomic_write}


def in_place(failed: str = "remove") -> Replacements:
    """Without a temporary."""
    return way(failed=failed, temporary=lambda c: c.target, flags=os.O_TRUNC)


def mistakes(right: Any, arrays: Arrays) -> Table:
    """See `numpy_ref.exercises.mistakes`."""
    return {
        "the-file-holds-the-data": [
            ("the old file was written into and not cut: its end stays", way(temporary=lambda c: c.target, flags=0)),
            (GO_ON, way(inside="keep write-once flush sync")),
            ("the directory of a bare name is the current one", way(target=os.fspath)),
        ],
        "a-crash-leaves-the-old-or-the-new": [
            ("written under its final name", in_place()),
            (
                "the system's write took 1000 of 3000 bytes, as it may, and raised nothing: go on with the rest",
                way(inside="keep write-once flush sync"),
            ),
            ("no fsync", way(inside="keep write flush"), NOT_SYNCHRONISED),
            ("fsync after the replace", way(inside="keep write flush rename sync", then=""), NOT_SYNCHRONISED),
            ("no flush", way(inside="keep write sync"), NOT_FLUSHED),
            ("fsync before the flush", way(inside="keep write sync flush"), NOT_FLUSHED),
            ("fsync before the write", way(inside="keep sync write flush"), NOT_FLUSHED),
            ("a crash after os.replace", way(inside="keep write rename flush sync", then="")),
            ("fsync was called for the directory instead", way(inside="keep write flush open sync-opened close")),
            ("fsync was called for the old file instead", way(inside="keep write flush open-old sync-opened close")),
            ("found no file; the old file was removed before", way(then="remove-old rename")),
        ],
        "after-the-return-the-new-file-is-on-disk": [
            ("no fsync of the directory followed it", way(after="open")),
            ("a crash after the return may lose the file", way(then="open sync-opened close rename", after="open")),
        ],
        "the-temporary-stands-beside-the-target": [
            ("the old one was written into", in_place()),
            (
                "perhaps on another file system",
                way(temporary=lambda c: own(SimpleNamespace(directory=tempfile.gettempdir(), name=c.name))),
            ),
        ],
        "two-writers-do-not-meet": [
            (GO_ON, way(inside="keep write-once flush sync")),
            (BOTH, way(temporary=lambda c: f"{c.target}.tmp", flags=os.O_TRUNC)),
            ("a fixed name that must be free", way(temporary=lambda c: f"{c.target}.tmp"), BOTH),
            ("a name for each process", way(temporary=lambda c: f"{c.target}.{os.getpid()}"), BOTH),
        ],
        "an-error-comes-through-and-the-old-file-stays": [
            ("the caller hears nothing", way(swallowed=BaseException)),
            ("the temporary was no longer there", way(then="rename open sync-opened close", after="open")),
            ("when fsync of the directory fails", way(after="open sync-lightly")),
            ("the old content must stand, found no file", way(failed="remove-old remove")),
            ("when fsync of the file fails, the old content must stand, found the new content", in_place("")),
            (f"found 1500 of the 3000 bytes of the new content, and no more; {GO_ON}", way(buffering=0)),
            ("only a part is written", way(inside="keep write-once flush sync"), GO_ON),
        ],
        "nothing-is-left-behind": [
            ("when fsync of the file fails, a temporary is left", way(failed="")),
            ("when Ctrl-C comes before the rename, a temporary is left", way(caught=Exception)),
            (
                "when the rename fails, a temporary is left",
                way(then="", after="rename open sync-opened close", last=""),
            ),
            ("a call that worked left .state.bin", way(then="copy")),
            (f"{DIRECTORY_OPEN}; os.close is passed over", way(after="open sync-opened close", last="")),
            (DIRECTORY_OPEN, way(then="open sync-opened close rename")),
            (
                "when fsync of the file fails, a descriptor is left open",
                way(inside="open-twin keep write flush sync close"),
            ),
            ("os.open was called without os.close", way(last="")),
        ],
        "the-mode-is-that-of-a-plain-open": [
            ("they are those of a private temporary", way(mode=0o600)),
            ("under umask 027 has other permissions", way(inside="mode-644 keep write flush sync")),
            ("a replaced file of mode 640", way(inside="write flush sync")),
            ("the umask was 022 before the call and is 000 after", way(inside="umask keep write flush sync")),
        ],
    }
