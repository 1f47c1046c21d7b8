"""Files of torch.save: archives, their records checked, and what it wrote before 1.6; no code that they hold runs."""

import pickletools
import re
import warnings
import zipfile
from typing import Any, BinaryIO

import torch

from numpy_ref.checkpoint.container import HEADER_LIMIT, CheckpointError, CorruptCheckpoint, IncompatibleCheckpoint
from torch_port import interop
from torch_port.audit.foreign.refusal import refuse, refused
from torch_port.interop.errors import Path, fail, first_line

DAMAGED = "The file is damaged, or never was a checkpoint: use another copy or an older one."
OLD = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # how torch.save began its files before 1.6
LFS = b"version https://git-lfs"
FORMS = {  # how files of other programs begin, what they are, and what reads them
    b"\x1f\x8b": ("a file that gzip has compressed", "Expand it first, with gzip -d."),
    b"BZh": ("a file that bzip2 has compressed", "Expand it first, with bzip2 -d."),
    b"\xfd7zXZ\0": ("a file that xz has compressed", "Expand it first, with xz -d."),
    b"\x28\xb5\x2f\xfd": ("a file that zstd has compressed", "Expand it first, with zstd -d."),
    b"\x93NUMPY": ("an array of NumPy (.npy)", "numpy.load reads it."),
    b"\x89HDF\r\n\x1a\n": ("a file of HDF5", "h5py reads it, and Keras its own."),
    b"GGUF": ("a file of GGUF", "The gguf package reads it."),
    LFS: ("text that points to a file of Git LFS", "Fetch that, with git lfs pull."),
}


def check_archive(path: Path, file: BinaryIO, size: int) -> None:
    """Hold the records of the archive that torch has written since 1.6 against their CRC-32."""
    try:
        with zipfile.ZipFile(file) as archive:
            records = archive.infolist()
            if sum(record.file_size for record in records) > size:
                found = "more than the file has room for"
                fail(CorruptCheckpoint, path, "records as torch writes them", found, DAMAGED)
        file.seek(0)
        damaged = interop.damaged_record(file)
    except CheckpointError:
        raise
    except Exception as error:  # zipfile raises nearly anything
        file.seek(max(0, size - (1 << 16)))
        whole = b"PK\5\6" in file.read()  # what an archive ends with
        found = f"a damaged one ({first_line(error)})" if whole else "one without its end: it was cut short"
        fail(CorruptCheckpoint, path, "a whole archive", found, DAMAGED)
    if damaged is not None:
        fail(CorruptCheckpoint, path, "records that agree with their CRC-32", f"another in {damaged!r}", DAMAGED)


def load(path: Path, file: BinaryIO, allowed: list[Any]) -> Any:
    """What torch's restricted unpickler makes of a file; any error but of the system is a `CheckpointError`."""
    try:
        with warnings.catch_warnings(), torch.serialization.safe_globals(allowed):
            warnings.simplefilter("ignore")
            return torch.load(file, map_location="cpu", weights_only=True)
    except (OSError, MemoryError):
        raise
    except Exception as error:  # a damaged file makes torch.load raise nearly anything
        if "allocate memory" in f"{error}":
            raise MemoryError from None
        file.seek(0)
        start = file.read(1024)
        if _is_text(start) and not _is_pickle(file):  # its letters can read like calls
            found, advice = _known_form(file, start) or ("text", "It is no checkpoint: give the path of one.")
            fail(CorruptCheckpoint, path, "a file of torch.save or safetensors", found, advice)
        if names := refused(file, allowed, f"{error}"):
            refuse(path, names)
        if form := _known_form(file, start):
            fail(CorruptCheckpoint, path, "a file of torch.save or safetensors", *form)
        if kind := re.search(r"Can only (?:SETITEMS?|append|extend) .*<class '(\w+\.[\w.]+)'>", f"{error}"):
            advice = "Where it is saved, make it plain: dict(x) or list(x)."
            found = f"a {kind[1]}, which torch cannot fill with weights_only"
            fail(IncompatibleCheckpoint, path, "dicts and lists", found, advice)
        if "Unsupported operand" in f"{error}":
            advice = "If you trust it, load it with the program that wrote it, and torch.save tensors and plain values."
            fail(IncompatibleCheckpoint, path, "a file of torch.save", "what torch refuses to unpickle", advice)
        found = "one of before 1.6 that is damaged or was cut short" if start.startswith(OLD) else first_line(error)
        fail(CorruptCheckpoint, path, "a file of torch.save or safetensors", found, DAMAGED)


def _is_text(start: bytes) -> bool:
    """Whether bytes are printable text, but for a letter that is cut at their end."""
    text = start.decode(errors="ignore")
    return len(start) - len(text.encode()) < 4 and all(x.isprintable() or x in "\t\r\n" for x in text)


def _is_pickle(file: BinaryIO) -> bool:
    """Whether a file has a whole pickle at its start; it is parsed, and not run."""
    file.seek(0)
    try:
        return all(True for _ in pickletools.genops(file))
    except Exception:  # it raises nearly anything
        return False


def _known_form(file: BinaryIO, start: bytes) -> tuple[str, str] | None:
    """What a file is that torch could not load, and what to do, in words; None if it is none of these."""
    length = int.from_bytes(start[:8], "little")
    if not any(start):
        return "zeros at its start: it was never written, or lost", DAMAGED
    if start.startswith(b"PK\3\4"):
        with zipfile.ZipFile(file) as archive:
            names = archive.namelist()
        if any(name.endswith("/data.pkl") for name in names):
            return None
        if names and all(name.endswith(".npy") for name in names):
            return "an archive of NumPy arrays (.npz)", "numpy.load reads it."
        found = "a zip archive that torch has not written: it has no data.pkl"
        return found, "Extract it, and give the path of the checkpoint in it."
    if start[257:262] == b"ustar":
        return "a tar archive", "Extract it, with tar -xf, and give the path of the checkpoint in it."
    if start[8:9] == b"{" and length > HEADER_LIMIT:
        return f"a safetensors header of {length:,} bytes, where at most {HEADER_LIMIT:,} are allowed", DAMAGED
    return next((form for magic, form in FORMS.items() if start.startswith(magic)), None)
