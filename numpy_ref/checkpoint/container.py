"""The file format: named arrays and a JSON manifest in the safetensors layout; no byte can change unnoticed.

    8 bytes    N, the length of the header, little-endian
    N bytes    the header: JSON, padded with spaces so that the data starts at a multiple of 8
    the rest   the arrays: little-endian, C order, without holes, by descending item size and then by name

The header maps each name to its `dtype`, `shape` and `data_offsets`, as in any safetensors file, and `__metadata__` to
five strings: `format`; `version`; `manifest`, the caller's JSON; `crc32`, JSON from name to 8 hexadecimal digits; and
`sha256`, taken over the length and the header with 64 zeros in this field's place. All JSON is canonical: keys sorted,
no spaces, ASCII. `format`, `version`, `sha256` and that rule stay the same in every later version, so that a reader can
tell a newer file from a damaged one. Numbers are stored as they are, except that every NaN becomes the positive quiet
one of its type, and every true is one.
"""

import hashlib
import json
import math
import os
import reprlib
import stat
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import BufferedReader
from threading import Lock
from typing import Any, BinaryIO, NoReturn

import numpy as np

from numpy_ref.checkpoint.chunks import CHUNK_BYTES, checksums, chunks_of, side_by_side
from numpy_ref.checkpoint.durable import ReplacementFile

FORMAT = "bitwise-resume"
VERSION = "1"
HEADER_LIMIT = 100_000_000  # bytes: what the safetensors package accepts
NAME_LIMIT = 1024  # bytes of UTF-8
DEPTH_LIMIT = 64  # of lists and dicts in a manifest

# NumPy's name of each type, and the format's.
CODES = {"float64": "F64", "float32": "F32", "float16": "F16", "bool": "BOOL"}
CODES |= {f"int{n}": f"I{n}" for n in (64, 32, 16, 8)} | {f"uint{n}": f"U{n}" for n in (64, 32, 16, 8)}
DTYPES = {code: name for name, code in CODES.items()}
TYPES = {name: np.dtype(name) for name in CODES}
STORED = {name: dtype.newbyteorder("<") for name, dtype in TYPES.items()}
NAMES = {dtype: name for name, dtype in TYPES.items()}  # NumPy forms the name anew each time, which takes long
METADATA = "__metadata__"
ENTRY = {"dtype", "shape", "data_offsets"}

# How files of other formats begin, where that is no length of a header.
OTHERS = {b"PK\x03\x04": "a zip archive, as torch.save and numpy.savez write", b"\x93NUMPY": "an array of NumPy (.npy)"}
OTHERS |= {
    b"\x89HDF\r\n": "a file of HDF5",
    b"\x1f\x8b\x08": "a file that gzip has compressed",
    b"\x80\x02\x8a\nl\xfc": "a pickle, as torch.save wrote once",
}
TEXT = {*b"\t\n\r", *range(32, 127)}  # bytes of which eight in a row are no length of a header
ELSEWHERE = "`python -m torch_port inspect` and `diff` look into files of other origin, without running what they hold."

NEWER = "Use the version of the program that wrote the file, or a newer one."
DAMAGED = "The file is damaged: use an older checkpoint or another copy of this one."

Path = str | os.PathLike[str]
Leaves = dict[str, tuple[str, tuple[int, ...]]]
Offsets = dict[str, tuple[int, int]]


class CheckpointError(Exception):
    """A checkpoint that cannot be used; the message says which file, what was expected, what was found, what to do."""


class CorruptCheckpoint(CheckpointError):
    """The file is damaged: cut short, changed, or never a checkpoint."""


class IncompleteCheckpoint(CheckpointError):
    """The file is sound, but lacks state that the caller needs."""


class IncompatibleCheckpoint(CheckpointError):
    """The file is sound, but made by another program, a newer version, or for another run."""


def check_storable(arrays: Mapping[str, np.ndarray]) -> None:
    """Refuse at save what could not be loaded, all of it in one message.

    Args:
        arrays: Arrays by name. A name is any text that is not empty, holds no NUL, can be encoded as UTF-8 in at most
            1024 bytes and is not `__metadata__`. An array is a plain ndarray (or memmap) of native byte order, of
            float64/32/16, int64/32/16/8, uint64/32/16/8 or bool, in any memory layout.

    Raises:
        ValueError: Names every offender and what is wrong with it, sorted.

    Example:
        >>> check_storable({"w": np.zeros(3), "": np.zeros(3)})
        Traceback (most recent call last):
        ...
        ValueError: cannot store these arrays; mend each and save again:
            '': expected a name that is not empty
    """
    faults = [(name, _fault_of_name(name)) for name in arrays]
    faults += [(name, _fault_of_array(array)) for name, array in arrays.items()]
    told = [(repr(name), fault) for name, fault in faults if fault]
    _refuse("arrays", [f"{name if len(name) <= 80 else name[:80] + '…'}: {fault}" for name, fault in told])


def write_container(
    file: BinaryIO | ReplacementFile, arrays: Mapping[str, np.ndarray], manifest: Mapping[str, Any]
) -> None:
    """Write arrays and manifest, streaming: memory for one chunk is all that it takes beside the arrays.

    The rule: check everything; write a header of zeros, which no reader accepts; write each array in C order, chunk by
    chunk, its CRC-32 taken beside the write; go back and write the true header, of the same length. Nobody may change
    the arrays meanwhile.

    Args:
        file: A buffered, seekable binary writer, empty and at its start. It is left open, neither flushed nor rewound.
        arrays: Arrays by name; `check_storable` says which are accepted.
        manifest: A JSON object: None, bool, int, finite float, str, lists and dicts with str keys, at most 64 deep.

    Raises:
        ValueError: An array, a name or a value of the manifest cannot be stored; nothing has been written.

    Source: the safetensors format, https://github.com/huggingface/safetensors#format.

    Example:
        >>> import io
        >>> file = io.BytesIO()
        >>> write_container(file, {"w": np.ones(2, np.uint8)}, {"step": 3})
        >>> file.getvalue()[-2:].hex()
        '0101'
    """
    check_storable(arrays)
    manifest = dict(manifest)
    _refuse("values of the manifest", list(_faults_of_json(manifest, "manifest", 0)))
    leaves = {name: (_name_of(array.dtype), array.shape) for name, array in arrays.items()}
    offsets = _offsets(leaves)
    entries = {
        name: {"dtype": CODES[dtype], "shape": shape, "data_offsets": offsets[name]}
        for name, (dtype, shape) in leaves.items()
    }
    crc32 = dict.fromkeys(leaves, "0" * 8)
    metadata = {"format": FORMAT, "version": VERSION, "crc32": _encode(crc32), "manifest": _encode(manifest)}
    length = len(_header(entries, metadata))
    if length > HEADER_LIMIT:
        raise ValueError(
            f"expected a header of at most {HEADER_LIMIT} bytes, found {length}: make the manifest smaller"
        )
    file.write(bytes(length))
    found = dict.fromkeys(leaves, 0)
    with checksums(found, sum(array.nbytes for array in arrays.values())) as count:
        for chunk, owners in chunks_of(arrays, offsets):
            count(chunk, owners)
            file.write(chunk)
    metadata["crc32"] = _encode({name: f"{crc:08x}" for name, crc in found.items()})
    file.seek(0)
    file.write(_header(entries, metadata))


def read_container(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Read and verify a whole file; nothing is returned unless every byte is as it was written.

    Args:
        path: A file that `write_container` wrote.

    Returns:
        The arrays by name, fresh, writable, C-contiguous and of native byte order, and the manifest.

    Raises:
        CorruptCheckpoint: The file is damaged; damaged arrays are all named.
        IncompatibleCheckpoint: The file is sound, but of another program or a newer version.
        CheckpointError: There is no such file, or it cannot be read.
    """
    return _read(path, keep=True)


def verify_container(path: Path) -> dict[str, Any]:
    """Read and verify a whole file as `read_container` does, in the memory of a chunk or two; gives the manifest alone.

    Raises:
        CheckpointError: As `read_container`.
    """
    return _read(path, keep=False)[1]


def _read(path: Path, *, keep: bool) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The arrays, if they are to be kept, and the manifest of a file that is verified whole."""
    damaged = []
    with _open(path) as file:
        leaves, offsets, crc32, manifest = _read_header(file, path)
        first, turn = file.tell(), Lock()
        arrays = {name: np.empty(leaves[name][1], STORED[leaves[name][0]]) for name in offsets if keep}

        def read(name: str) -> None:
            dtype, (begin, end) = leaves[name][0], offsets[name]
            chunk = np.empty(0 if keep else min(end - begin, CHUNK_BYTES), np.uint8).data
            stored = arrays[name].reshape(-1).view(np.uint8).data if keep else chunk
            crc, odd = 0, False
            for start in range(0, end - begin, CHUNK_BYTES):
                part = stored[start : start + CHUNK_BYTES] if keep else chunk[: end - begin - start]
                with turn:
                    file.seek(first + begin + start)
                    got = file.readinto(part)
                if got != len(part):  # the size was right when the file was opened: somebody has cut it since
                    _fail(path, f"{len(part)} more bytes", f"{got}", leaf=name)
                crc = zlib.crc32(part, crc)
                odd = odd or (dtype == "bool" and bool(np.asarray(part).max() > 1))
            if f"{crc:08x}" != crc32[name]:
                damaged.append(f"{name!r} with CRC-32 {crc:08x} for {crc32[name]!a:.80}")
            elif odd:
                damaged.append(f"{name!r} with booleans other than 0 and 1")
            if keep and not arrays[name].dtype.isnative:
                arrays[name] = arrays[name].astype(TYPES[dtype])

        side_by_side(read, offsets, max((end for _, end in offsets.values()), default=0))
    if damaged:
        _fail(path, "arrays as they were written", "; ".join(sorted(damaged)))
    return arrays, manifest


def is_container(path: Path) -> bool:
    """Whether a file says that it has this format, sound or not; also where it cannot be read, which readers tell."""
    if not os.path.isfile(path):  # a pipe would wait for a writer
        return True
    try:
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            return f'"format":"{FORMAT}"'.encode() in file.read(min(length, 1 << 26))
    except OSError:
        return True


def read_manifest(path: Path) -> tuple[Leaves, dict[str, Any]]:
    """Read and verify the header alone, and that the file has the size it states: cheap however large the file.

    Args:
        path: A file that `write_container` wrote.

    Returns:
        The type's name and the shape of each array by name, and the manifest.

    Raises:
        CheckpointError: As `read_container`, except that damage within the arrays is not seen.
    """
    with _open(path) as file:
        leaves, _, _, manifest = _read_header(file, path)
    return leaves, manifest


def _fault_of_name(name: object) -> str | None:
    """What is wrong with the name of an array, None if nothing is."""
    if not isinstance(name, str):
        return f"expected a name that is a str, found {type(name).__name__}"
    if not name or "\0" in name:
        return f"expected a name that {'holds no NUL' if name else 'is not empty'}"
    if name == METADATA:
        return "this name is reserved by the format; choose another"
    try:
        length = len(name.encode())
    except UnicodeEncodeError:
        return "expected a name that UTF-8 can encode, found a lone surrogate"
    return f"expected a name of at most {NAME_LIMIT} bytes, found {length}" if length > NAME_LIMIT else None


def _fault_of_array(array: object) -> str | None:
    """What is wrong with an array, None if nothing is."""
    # Another subclass would lose what it adds, such as a mask.
    if not isinstance(array, np.ndarray) or type(array) not in (np.ndarray, np.memmap):
        return f"expected numpy.ndarray, found {type(array).__name__}; convert it"
    if array.dtype in NAMES:
        return None
    if array.dtype.hasobject:
        return "Python objects cannot be stored in an array; make them numbers, or put them into the manifest"
    if _name_of(array.dtype) not in CODES:
        return f"dtype {array.dtype} cannot be stored; convert it to one of {', '.join(sorted(CODES))}"
    if not array.dtype.isnative:
        return f"expected native byte order, found {array.dtype.str!r}; use array.astype(array.dtype.newbyteorder('='))"
    return None


def _name_of(dtype: np.dtype[Any]) -> str:
    """`dtype.name`."""
    return NAMES.get(dtype) or dtype.name


def _faults_of_json(value: object, place: str, depth: int) -> Iterator[str]:
    """All places in a manifest whose value would not come back from JSON as it was."""
    if depth > DEPTH_LIMIT:
        yield f"{place[:80]}…: nested more than {DEPTH_LIMIT} deep, or within itself"
    elif isinstance(value, dict):
        yield from (f"{place}: expected keys that are str, found {key!r}" for key in value if not isinstance(key, str))
        for key, item in value.items():
            yield from _faults_of_json(item, f"{place}/{key}", depth + 1)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _faults_of_json(item, f"{place}/{index}", depth + 1)
    elif isinstance(value, float) and not math.isfinite(value):
        yield f"{place}: expected a finite number, found {value!r}; write it as a str"
    elif isinstance(value, int) and value.bit_length() > 8192:
        yield f"{place}: expected an integer of at most 8192 bits, found {value.bit_length()}; write it in hexadecimal"
    elif value is not None and not isinstance(value, (int, float, str)):
        yield f"{place}: expected None, bool, int, float, str, list or dict, found {type(value).__name__}"


def _refuse(what: str, faults: list[str]) -> None:
    """Raise one ValueError for all faults, if there are any."""
    if faults:
        raise ValueError(f"cannot store these {what}; mend each and save again:\n    " + "\n    ".join(sorted(faults)))


def _fail(
    path: Path,
    expected: str,
    found: str,
    leaf: str = "",
    advice: str = DAMAGED,
    kind: type[CheckpointError] = CorruptCheckpoint,
) -> NoReturn:
    """Raise a `CheckpointError`: where, what was expected, what was found, what to do."""
    # A name comes from the file: what a terminal would obey is escaped.
    place = f"{os.fspath(path)}: " + (f"{leaf if leaf.isprintable() else ascii(leaf)}: " if leaf else "")
    raise kind(f"{place}expected {expected}, found {found}.\n    {advice}")


def _encode(value: object) -> str:
    """The one way to write a value as JSON."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def _decode(path: Path, what: str, text: str | bytes) -> Any:
    """Read strict JSON that is written in the one way, save for spaces at the end.

    Of a key that stands twice the last value counts; that what was read would be written otherwise tells it.
    """
    try:
        value = json.loads(text if isinstance(text, str) else text.decode())
    except (ValueError, RecursionError) as error:
        _fail(path, f"{what} of strict JSON", f"{error}")
    # What the writer refuses was not written by it: NaN, infinities, and depths at which other calls would give up.
    for fault in _faults_of_json(value, what, 0):
        _fail(path, f"{what} that could have been written", f"{fault!a:.200}")
    if isinstance(text, str) and _encode(value) != text:  # the header itself is compared with its digest in it
        _fail(path, f"{what} in canonical form", "another")
    return value


def _offsets(leaves: Leaves) -> Offsets:
    """Where each array's bytes begin and end, in the order of the data: large items first, so that all are aligned."""
    begin, offsets = 0, {}
    for name in sorted(sorted(leaves), key=lambda name: -TYPES[leaves[name][0]].itemsize):
        dtype, shape = leaves[name]
        offsets[name] = (begin, begin := begin + math.prod(shape) * TYPES[dtype].itemsize)
    return offsets


def _header(entries: Mapping[str, Any], metadata: Mapping[str, str]) -> bytes:
    """The length and the header, canonical, padded and with its digest."""
    zeros = f'"sha256":"{"0" * 64}"'  # found once: within a string its quotes would be escaped
    text = _encode({**entries, METADATA: {**metadata, "sha256": "0" * 64}})
    text += " " * (-len(text) % 8)
    length = len(text).to_bytes(8, "little")
    digest = hashlib.sha256(length + text.encode()).hexdigest()
    return length + text.replace(zeros, f'"sha256":"{digest}"', 1).encode()


@contextmanager
def _open(path: Path) -> Iterator[BufferedReader]:
    """Open a checkpoint for reading; whatever the system refuses becomes a `CheckpointError`."""
    try:
        # Asked before opening: opening a pipe would wait for a writer.
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise IsADirectoryError
        with open(path, "rb") as file:
            yield file
    except IsADirectoryError:
        _fail(path, "a file", "a directory or device", advice="Give the path of one file.", kind=CheckpointError)
    except FileNotFoundError:
        _fail(path, "a checkpoint", "no such file", advice="Check the path, or save first.", kind=CheckpointError)
    except MemoryError:
        advice = "Close other programs, or read it on a larger machine; the file itself may be sound."
        _fail(path, "a file that fits into memory", "too little memory", advice=advice, kind=CheckpointError)
    except OSError as error:
        advice = "Check the permissions and the disk; the file itself may be sound."
        _fail(path, "a readable file", error.strerror or f"{error}", advice=advice, kind=CheckpointError)


def _read_header(file: BufferedReader, path: Path) -> tuple[Leaves, Offsets, dict[str, str], dict[str, Any]]:
    """Read the header and verify all that it says, against itself and against the size of the file.

    Gives types and shapes, places in the data, checksums and the manifest.
    """
    size = os.fstat(file.fileno()).st_size
    prefix = file.read(8)
    length = int.from_bytes(prefix, "little")
    if len(prefix) < 8 or not 2 <= length <= min(size - 8, HEADER_LIMIT):
        if len(prefix) == 8 and all(byte in TEXT for byte in prefix):
            _fail(path, f"a {FORMAT} file", "text", advice="It is no checkpoint.")
        if other := next((name for begin, name in OTHERS.items() if prefix.startswith(begin)), None):
            _fail(path, f"a {FORMAT} file", other, advice=ELSEWHERE)
        _fail(path, "8 bytes with the length of a header, and the header", f"{size} bytes, stating {length}")
    raw = file.read(length)
    header = _decode(path, "a header", raw)
    metadata = header.get(METADATA, {}) if isinstance(header, dict) else None
    if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
        _fail(path, "an object with __metadata__ from str to str", reprlib.repr(header))
    entries = {name: entry for name, entry in header.items() if name != METADATA}
    for name, entry in entries.items():
        if fault := _fault_of_name(name):
            _fail(path, "legal names", f"{reprlib.repr(name)}: {fault}")
        if not isinstance(entry, dict) or entry.keys() != ENTRY:
            _fail(path, "dtype, shape and data_offsets", reprlib.repr(entry), leaf=name)
    # A file of ours with one flipped bit still has one of the two, and goes on to fail by its digest.
    if metadata.get("format") != FORMAT and "sha256" not in metadata:
        found, advice = "a plain safetensors file", "It holds no state of a run: read it with the safetensors package."
        _fail(path, f"a {FORMAT} file", found, advice=advice, kind=IncompatibleCheckpoint)
    if _header(entries, metadata) != prefix + raw:
        _fail(path, "a header in canonical form that agrees with its SHA-256", "another")
    # From here on the header is as somebody wrote it.
    written = f"format {metadata.get('format')!r:.80} version {metadata.get('version')!r:.80}"
    if written != (ours := f"format {FORMAT!r} version {VERSION!r}"):
        _fail(path, ours, written, advice=NEWER, kind=IncompatibleCheckpoint)
    if metadata.keys() != (keys := {"crc32", "format", "manifest", "sha256", "version"}):
        _fail(path, f"metadata {sorted(keys)}", reprlib.repr(sorted(metadata)))
    leaves = {name: _leaf(path, name, entry["dtype"], entry["shape"]) for name, entry in entries.items()}
    end, offsets = 0, _offsets(leaves)
    for name, (begin, end) in offsets.items():
        # As text, for True == 1 == 1.0.
        if repr(entries[name]["data_offsets"]) != f"[{begin}, {end}]":
            _fail(path, f"data_offsets [{begin}, {end}]", reprlib.repr(entries[name]["data_offsets"]), leaf=name)
    if size != (total := 8 + length + end):
        _fail(path, f"{total} bytes in all", f"{size}: {'cut short' if size < total else 'too many'}")
    crc32, manifest = (_decode(path, key, metadata[key]) for key in ("crc32", "manifest"))
    if not isinstance(crc32, dict) or not isinstance(manifest, dict) or crc32.keys() != leaves.keys():
        _fail(path, "a manifest that is an object, and a CRC-32 for each array", "another")
    return leaves, offsets, crc32, manifest


def _leaf(path: Path, name: str, code: object, shape: object) -> tuple[str, tuple[int, ...]]:
    """The type's name and the shape of one array."""
    if not isinstance(code, str) or code not in DTYPES:
        known = f"a dtype of {', '.join(sorted(DTYPES))}"
        _fail(path, known, reprlib.repr(code), leaf=name, advice=NEWER, kind=IncompatibleCheckpoint)
    # `type`, for True is an int too. Sizes beside a zero count as well: NumPy refuses such an array all the same.
    sizes: list[Any] = shape if isinstance(shape, list) else [None]
    sound = len(sizes) <= 64 and all(type(n) is int and 0 <= n < 2**63 for n in sizes)
    if not sound or math.prod(filter(None, sizes)) * TYPES[DTYPES[code]].itemsize >= 2**63:
        _fail(
            path, "a shape of at most 64 sizes, none negative, of less than 2**63 bytes", reprlib.repr(shape), leaf=name
        )
    return DTYPES[code], tuple(sizes)
