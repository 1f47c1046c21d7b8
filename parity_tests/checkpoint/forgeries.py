"""Files made by hand, with right checksums, by a writer that shares no code with the module that reads them."""

import hashlib
import json
import struct
import zlib


def dumps(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def forge(header, data=b"", *, seal=True, text=None, pad=None):
    """A file with this header, its SHA-256 set if `seal`, or with the text that `text` makes of it."""

    def frame(digest):
        full = dict(header)
        if seal:
            full["__metadata__"] = {**header["__metadata__"], "sha256": digest}
        raw = (text or dumps)(full).encode("utf-8", "surrogatepass")
        raw += b" " * (-len(raw) % 8 if pad is None else pad)
        return struct.pack("<Q", len(raw)) + raw

    return frame(hashlib.sha256(frame("0" * 64)).hexdigest()) + data


def metadata(crc32=None, manifest="{}", **others):
    crc32 = dumps({"a": f"{zlib.crc32(bytes(8)):08x}"} if crc32 is None else crc32)
    return {"format": "bitwise-resume", "version": "1", "crc32": crc32, "manifest": manifest, **others}


def entry(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape) if isinstance(shape, tuple) else shape, "data_offsets": list(offsets)}


def header(meta=None, **entries):
    return {"__metadata__": metadata() if meta is None else meta, **(entries or {"a": entry()})}


EIGHT = bytes(8)
HUGE = [2**62] * 2
TWO = {"a": "00000000", "b": "00000000"}
CORRUPT = {
    "a header length past the end": struct.pack("<Q", 100) + b"{}",
    "a header length of all ones": b"\xff" * 16,
    "a header length of the largest signed integer": struct.pack("<Q", 2**63 - 1) + b"{}",
    "a header of nothing": struct.pack("<Q", 0),
    "a header of one byte": struct.pack("<Q", 1) + b"{",
    "a header that is a list": struct.pack("<Q", 8) + b"[]      ",
    "a header that is a number": struct.pack("<Q", 8) + b"1       ",
    "a header that is text": struct.pack("<Q", 8) + b'"abcdef"',
    "a header that is not UTF-8": struct.pack("<Q", 8) + b'{"\xff":1} ',
    "a header in UTF-16": struct.pack("<Q", 8) + "{}  ".encode("utf-16-le"),
    "deeply nested JSON": struct.pack("<Q", 400_000) + b'{"a":' + b"[" * 399_995,
    "deeply nested closed JSON": struct.pack("<Q", 400_007) + b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"} ",
    "an integer of too many digits": struct.pack("<Q", 10_000) + b'{"a":' + b"9" * 9_994 + b"}",
    "no array but a number": struct.pack("<Q", 8) + b'{"a":1} ',
    "one array twice": forge(header(), EIGHT, text=lambda full: '{"a":1,' + dumps(full)[1:]),
    "one key twice in an entry": forge(
        header(), EIGHT, text=lambda full: dumps(full).replace('"shape":[2]', '"shape":[2],"shape":[2]')
    ),
    "a space within": forge(header(), EIGHT, text=lambda full: dumps(full).replace('"shape":', '"shape": ')),
    "a space before": forge(header(), EIGHT, text=lambda full: " " + dumps(full)),
    "too much padding": forge(header(), EIGHT, text=lambda full: dumps(full) + " " * (8 + -len(dumps(full)) % 8)),
    "too little padding": forge(header(), EIGHT, pad=0),
    "another order": forge(
        header(), EIGHT, text=lambda full: json.dumps(dict(reversed(full.items())), separators=(",", ":"))
    ),
    "text that is not escaped": forge(
        header(meta=metadata({"ü": "00000000"}), ü=entry(shape=(0,), offsets=(0, 0))),
        text=lambda full: json.dumps(full, sort_keys=True, separators=(",", ":"), ensure_ascii=False),
    ),
    "a wrong digest": forge(header(meta=metadata(sha256="0" * 64)), EIGHT, seal=False),
    "no digest": forge(header(meta=metadata()), EIGHT, seal=False),
    "metadata that is a list": forge({"__metadata__": [], "a": entry()}, EIGHT, seal=False),
    "metadata of numbers": forge(header(meta=metadata(version=1)), EIGHT),
    "more metadata": forge(header(meta=metadata(more="")), EIGHT),
    "less metadata": forge(header(meta={"format": "bitwise-resume", "version": "1"}), EIGHT),
    "a shape of NaN": forge(header(a=entry(shape=(float("nan"),))), EIGHT),
    "a shape of infinity": forge(header(), EIGHT, text=lambda full: dumps(full).replace("[2]", "[1e999]")),
    "a negative shape": forge(header(a=entry(shape=(-2,))), EIGHT),
    "two negative sizes": forge(header(a=entry(shape=(-2, -1))), EIGHT),
    "a fractional shape": forge(header(a=entry(shape=(2.0,))), EIGHT),
    "a boolean shape": forge(header(a=entry("F64", shape=(True,))), EIGHT),
    "a shape that is text": forge(header(a=entry(shape="2")), EIGHT),
    "a shape that is a number": forge(header(a=entry(shape=2)), EIGHT),
    "a shape that is an object": forge(header(a=entry(shape={"2": 2})), EIGHT),
    "a huge shape": forge(header(a=entry(shape=(2**40,), offsets=(0, 2**42))), EIGHT),
    "a shape that overflows to 8 bytes": forge(header(a=entry(shape=(2**62, 4, 2))), EIGHT),
    "a shape beyond 64 bits": forge(header(a=entry(shape=(2**80, 0), offsets=(0, 0)))),
    "a huge shape of no elements": forge(header(a=entry(shape=(*HUGE, 0), offsets=(0, 0)))),
    "too many sizes": forge(header(a=entry(shape=(1,) * 65, offsets=(0, 4))), bytes(4)),
    "a shape larger than its offsets": forge(header(a=entry(shape=(3,))), EIGHT),
    "offsets that begin late": forge(header(a=entry(offsets=(8, 16))), bytes(16)),
    "offsets the wrong way round": forge(header(a=entry(offsets=(8, 0))), EIGHT),
    "offsets of one number": forge(header(a=entry(offsets=(0,))), EIGHT),
    "offsets of three numbers": forge(header(a=entry(offsets=(0, 8, 8))), EIGHT),
    "negative offsets": forge(header(a=entry(offsets=(-8, 0))), EIGHT),
    "fractional offsets": forge(header(a=entry(offsets=(0.0, 8))), EIGHT),
    "boolean offsets": forge(header(a=entry("U8", (1,), (False, True))), bytes(1)),
    "overlapping arrays": forge(header(meta=metadata(TWO), a=entry(), b=entry()), EIGHT),
    "a hole between arrays": forge(header(meta=metadata(TWO), a=entry(), b=entry(offsets=(12, 20))), bytes(20)),
    "arrays in another order": forge(
        header(meta=metadata(TWO), a=entry(offsets=(8, 16)), b=entry(offsets=(0, 8))), bytes(16)
    ),
    "small items before large": forge(
        header(meta=metadata(TWO), a=entry("U8", (8,)), b=entry(offsets=(8, 16))), bytes(16)
    ),
    "an entry with more": forge(header(a={**entry(), "more": 1}), EIGHT),
    "an entry with less": forge(header(a={"dtype": "F32", "shape": [2]}), EIGHT),
    "a name of nothing": forge(header(**{"": entry()}), EIGHT),
    "a name with NUL": forge(header(**{"\0": entry()}), EIGHT),
    "a name with a lone surrogate": forge(header(**{"\ud800": entry()}), EIGHT),
    "a lone surrogate not escaped": forge(
        header(**{"\ud800": entry()}),
        EIGHT,
        text=lambda full: json.dumps(full, sort_keys=True, separators=(",", ":"), ensure_ascii=False),
    ),
    "a name that is too long": forge(header(**{"x" * 1025: entry()}), EIGHT),
    "no checksum for an array": forge(header(meta=metadata({})), EIGHT),
    "a checksum for no array": forge(header(meta=metadata({**TWO})), EIGHT),
    "checksums that are a list": forge(header(meta=metadata(["a"])), EIGHT),
    "a checksum that is a number": forge(header(meta=metadata({"a": zlib.crc32(EIGHT)})), EIGHT),
    "a checksum in capitals": forge(header(meta=metadata({"a": f"{zlib.crc32(b'abcdefgh'):08X}"})), b"abcdefgh"),
    "a manifest that is a list": forge(header(meta=metadata(manifest="[]")), EIGHT),
    "a manifest that is not JSON": forge(header(meta=metadata(manifest="{")), EIGHT),
    "a manifest with NaN": forge(header(meta=metadata(manifest='{"a":NaN}')), EIGHT),
    "a manifest with one key twice": forge(header(meta=metadata(manifest='{"a":1,"a":2}')), EIGHT),
    "a manifest with one key twice within": forge(header(meta=metadata(manifest='{"b":[{"a":1,"a":2}]}')), EIGHT),
    "a manifest with a space": forge(header(meta=metadata(manifest='{"a": 1}')), EIGHT),
    "a manifest in another order": forge(header(meta=metadata(manifest='{"b":1,"a":1}')), EIGHT),
    "checksums with a space": forge(header(meta=metadata() | {"crc32": dumps({"a": "00000000"}) + " "}), EIGHT),
    "a manifest deeper than any that is written": forge(
        header(meta=metadata(manifest='{"a":' + "[" * 65 + "]" * 65 + "}")), EIGHT
    ),
    "checksums that are nested": forge(header(meta=metadata({"a": [[["00000000"]]]})), EIGHT),
    "a checksum that a terminal would obey": forge(header(meta=metadata({"a": "\x1b[31m" * 1000})), EIGHT),
    "a manifest with an integer of too many bits": forge(header(meta=metadata(manifest=f'{{"a":{2**8192}}}')), EIGHT),
    "a manifest nested too deeply": forge(
        header(meta=metadata(manifest='{"a":' * 100_000 + "1" + "}" * 100_000)), EIGHT
    ),
    "booleans that are neither": forge(
        header(meta=metadata({"a": f"{zlib.crc32(bytes([0, 2])):08x}"}), a=entry("BOOL", (2,), (0, 2))), b"\0\2"
    ),
}
