"""How many draws apart two states of a random generator are, in words a person can act on.

    MT19937            the next blocks of 624 words are made until the other state's block comes
    PCG64, PCG64DXSM   the distance on their cycle is computed, bit by bit
    Philox, a device   the place in the stream is part of the state
    SFC64              its counter tells how many steps to make; whether they lead to the other state is tried

A place is counted in words of 32 bits: PCG64, Philox and SFC64 make two at a time, and may hold the second in store.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from numpy_ref.types import Array

__all__ = ["LIMIT", "Drift", "drift", "engine_of"]


LIMIT = 1_000_000  # draws of 64 bits that are looked for, either way
WORDS = 624  # of a block of MT19937
TORCH_BYTES, DEVICE_BYTES = 5056, 16
MULTIPLIERS = {"PCG64": 0x2360ED051FC65DA44385DF649FCCF645, "PCG64DXSM": 0xDA942042E4DD58B5}
CYCLE = 2**128  # of the PCGs
PHILOX_CYCLE = 2**258  # four draws for each of 2**256 counts

# What moves torch's generator by so many words where a loader's iterator is made.
ITERATORS = {2: "a loader's iterator", 4: "the iterator of a shuffling loader"}


class Drift(NamedTuple):
    """How far a generator is from where it is expected."""

    relation: str  # "same", "apart", "store", "far", "another stream" or "another engine"
    draws: int | None  # that the found state is ahead, negative if behind; None unless "same", "store" or "apart"
    bits: int  # of each of those draws; 0 where a device's offset is counted
    text: str


class _State(NamedTuple):
    """A state as this module needs it."""

    source: str  # whose it is
    engine: str
    stream: Any  # what no draw changes: a seed, a key or an increment; nothing for MT19937 and SFC64
    place: Any  # what draws change
    half: int = 0  # words of 32 bits in store, 0 or 1
    store: bytes = b""  # all that is in store
    stored: str = ""  # what that is


def drift(expected: Any, found: Any) -> Drift:
    """Tell how far a generator's state is from the expected one.

    Args:
        expected: as `torch.get_rng_state()`, `torch.cuda.get_rng_state()`, `numpy.random.get_state()`,
            `random.getstate()` or the `state` of a NumPy bit generator give it; tensors may be arrays, tuples lists.
        found: likewise; of another library, if the engine is the same.

    Returns:
        The distance, searched for a million draws of 64 bits either way.

    Raises:
        ValueError: one of them is no state of a generator that is known.

    Example:
        >>> engine = np.random.PCG64(1)
        >>> before, _, after = engine.state, engine.random_raw(3), engine.state
        >>> drift(before, after).text
        'ahead by 3 64-bit draws'
    """
    a, b = _read(expected), _read(found)
    if a is None or b is None:
        which = "expected" if a is None else "found"
        raise ValueError(
            f"drift: {which}: expected the state of a generator of torch, NumPy or Python, found "
            f"{type(expected if a is None else found).__name__} that is none, or one that no draws lead to"
        )
    if a.engine != b.engine:
        return Drift("another engine", None, 0, f"another engine: {b.engine}, not {a.engine}")
    words = _DISTANCES[a.engine](a, b)
    if words is None:
        return Drift("another stream", None, 0, "another stream")
    if a.engine == "device":
        return _on_device(words)
    if words == 0 and a.store == b.store:
        return Drift("same", 0, 64, "the same")
    if words == 0:
        stored = a.stored or b.stored
        lost = f"{stored} in store {'was lost' if not b.store else 'is another' if a.store else 'is one too many'}"
        return Drift("store", 0, 64, f"at the same draw, but {lost}")
    if abs(words) > 2 * LIMIT:
        text = f"{_way(words)} in the same stream by more than {LIMIT:,} draws"
        return Drift("far", None, 64, text)
    bits = 32 if words % 2 else 64
    draws = words * 32 // bits
    return Drift("apart", draws, bits, f"{_way(words)} by {_count(abs(draws), bits)}{_reason(a, b, words)}")


def engine_of(state: Any) -> str | None:
    """Whose generator's state this is, in words; None if it is no such state.

    Example:
        >>> engine_of(np.random.SFC64(0).state), engine_of({"state": {}})
        ('NumPy SFC64', None)
    """
    read = _read(state)
    return None if read is None else read.source


# In words


def _way(draws: int) -> str:
    return "ahead" if draws > 0 else "behind"


def _count(draws: int, bits: int) -> str:
    return f"one {bits}-bit draw" if draws == 1 else f"{draws:,} {bits}-bit draws"


def _reason(a: _State, b: _State, words: int) -> str:
    """What usually makes this very distance."""
    if words == 1 and a.half and not b.half:
        return ": the half word in store was lost"
    if a.source == b.source == "torch" and abs(words) in ITERATORS:
        iterator = ITERATORS[abs(words)]
        when = "was made after the restore" if words > 0 else "was made before the save, and not again"
        return f", as if {iterator} {when}"
    return ""


def _on_device(offset: int) -> Drift:
    """The distance of two device generators of one seed, at any length."""
    if offset == 0:
        return Drift("same", 0, 0, "the same")
    return Drift("apart", offset, 0, f"{_way(offset)} by an offset of {abs(offset):,}")


# Distances in words of 32 bits, positive where b is ahead


def _mersenne(a: _State, b: _State) -> int | None:
    """Made from both states at once, for most distances are short."""
    (key_a, at_a), (key_b, at_b) = a.place, b.place
    for block, (from_a, from_b) in enumerate(zip(_blocks(key_a), _blocks(key_b), strict=True)):
        for key, wanted, sign in ((from_a, key_b, 1), (from_b, key_a, -1)):
            if np.array_equal(key, wanted):
                words = sign * block * WORDS + at_b - at_a
                return words if abs(words) <= 2 * LIMIT else None
    return None


def _blocks(key: Array) -> Iterator[Array]:
    """A block of words, and those that follow it."""
    engine = np.random.MT19937(0)
    engine.state = {"bit_generator": "MT19937", "state": {"key": key, "pos": WORDS}}
    for _ in range(2 * LIMIT // WORDS + 2):
        yield engine.state["state"]["key"]
        engine.random_raw(WORDS, output=False)


def _pcg(a: _State, b: _State) -> int | None:
    if a.stream != b.stream:
        return None
    place, factor, addend = a.place, MULTIPLIERS[a.engine], a.stream
    steps, bit = 0, 1
    while bit < CYCLE:  # steps that are a multiple of `bit` leave all lower bits alone, so each is decided for good
        if (place ^ b.place) & bit:
            place = (place * factor + addend) % CYCLE
            steps |= bit
        factor, addend, bit = factor * factor % CYCLE, (factor + 1) * addend % CYCLE, bit << 1
    return None if place != b.place else 2 * _signed(steps, CYCLE) + a.half - b.half


def _philox(a: _State, b: _State) -> int | None:
    if a.stream != b.stream:
        return None
    return 2 * _signed((b.place - a.place) % PHILOX_CYCLE, PHILOX_CYCLE) + a.half - b.half


def _sfc(a: _State, b: _State) -> int | None:
    steps = _signed((int(b.place[3]) - int(a.place[3])) % 2**64, 2**64)
    first, last = (a, b) if steps >= 0 else (b, a)
    if abs(steps) > LIMIT:
        return None
    engine = np.random.SFC64(0)
    engine.state = engine.state | {"state": {"state": first.place}}
    engine.random_raw(abs(steps), output=False)
    same = np.array_equal(engine.state["state"]["state"], last.place)
    return 2 * steps + a.half - b.half if same else None


def _device(a: _State, b: _State) -> int | None:
    return int(b.place - a.place) if a.stream == b.stream else None


def _signed(steps: int, cycle: int) -> int:
    """The shorter way round."""
    return steps if steps <= cycle // 2 else steps - cycle


_DISTANCES = {
    "MT19937": _mersenne,
    "PCG64": _pcg,
    "PCG64DXSM": _pcg,
    "Philox": _philox,
    "SFC64": _sfc,
    "device": _device,
}


# States


def _read(state: Any) -> _State | None:
    """A state of any kind that is known; None for anything else, and for what no draws lead to."""
    try:
        if isinstance(state, Mapping):
            return _numpy(state)
        if isinstance(state, (tuple, list)):
            return _tuple(state)
        return _bytes(state)
    except (KeyError, TypeError, ValueError, OverflowError, RuntimeError):
        return None


def _numpy(state: Mapping[str, Any]) -> _State | None:
    """The state of a NumPy bit generator, or of `RandomState` as a dict."""
    name = state.get("bit_generator")
    source = f"NumPy {name}"
    if name == "MT19937":
        return _words(source, state["state"]["key"], state["state"]["pos"], _normal(state))
    if name not in ("PCG64", "PCG64DXSM", "Philox", "SFC64"):
        return None
    half = int(state["has_uint32"])
    if half not in (0, 1):
        return None
    store = (int(state["uinteger"]).to_bytes(4, "little") if half else b"") + _normal(state)
    inner, stored = state["state"], "the half word" if half else "the normal number" if store else ""
    if name == "Philox":
        counter = sum(int(word) << 64 * i for i, word in enumerate(_array(inner["counter"], np.uint64, 4)))
        at = int(state["buffer_pos"])
        if not 0 <= at <= 4:
            return None
        left = _array(state["buffer"], np.uint64, 4)[at:].tobytes()
        key = tuple(_array(inner["key"], np.uint64, 2).tolist())
        return _State(source, name, key, 4 * counter + at, half, left + store, stored or "the block")
    if name == "SFC64":
        return _State(source, name, None, _array(inner["state"], np.uint64, 4), half, store, stored)
    place, increment = int(inner["state"]), int(inner["inc"])
    sound = 0 <= place < CYCLE and 0 <= increment < CYCLE and increment % 2
    return _State(source, name, increment, place, half, store, stored) if sound else None


def _tuple(state: tuple[Any, ...] | list[Any]) -> _State | None:
    """What `numpy.random.get_state()` or `random.getstate()` gives."""
    if len(state) == 5 and isinstance(state[0], str) and state[0] == "MT19937":
        return _words("NumPy MT19937", state[1], state[2], _normal({"has_gauss": state[3], "gauss": state[4]}))
    if len(state) == 3 and type(state[0]) is int and state[0] == 3 and len(state[1]) == WORDS + 1:
        normal = b"" if state[2] is None else np.float64(state[2]).tobytes()
        return _words("Python", state[1][:WORDS], state[1][WORDS], normal)
    return None


def _normal(state: Mapping[str, Any]) -> bytes:
    """The normal number that NumPy's legacy generator has in store."""
    return np.float64(state["gauss"]).tobytes() if state.get("has_gauss") else b""


def _bytes(state: Any) -> _State | None:
    """What torch gives for its CPU generator or for a device's."""
    if str(getattr(state, "dtype", "")) not in ("uint8", "torch.uint8") or len(state.shape) != 1:
        return None
    if state.shape[0] not in (TORCH_BYTES, DEVICE_BYTES):
        return None
    raw = (state.detach().cpu().numpy() if hasattr(state, "cpu") else np.asarray(state)).tobytes()
    if len(raw) == DEVICE_BYTES:
        return _State("device", "device", int.from_bytes(raw[:8], "little"), int.from_bytes(raw[8:], "little"))
    left, following = (int(np.frombuffer(raw, kind, 1, at)[0]) for kind, at in (("<i4", 8), ("<u8", 16)))
    if left > 1 and following != WORDS + 1 - left:
        return None
    normal = raw[5016:5040] if any(raw[5040:5044]) else b""  # of type double: two uniform numbers and their radius
    single = raw[5048:5052] if raw[5052] else b""
    return _words("torch", np.frombuffer(raw, "<u8", WORDS, 24), WORDS + 1 - left, normal + single)


def _words(source: str, key: Any, at: Any, normal: bytes) -> _State | None:
    """A state of MT19937: a block of words, and how many of them are used up."""
    words = np.asarray([int(word) for word in key] if isinstance(key, (tuple, list)) else key)
    if words.shape != (WORDS,) or words.dtype.kind not in "iu" or not 0 <= int(at) <= WORDS:
        return None
    if int(words.min()) < 0 or int(words.max()) >= 2**32 or not words.any():
        return None
    return _State(source, "MT19937", None, (words.astype(np.uint32), int(at)), 0, normal, "the normal number")


def _array(values: Any, dtype: Any, size: int) -> Array:
    array = np.array([int(value) for value in values], dtype)
    if array.shape != (size,):
        raise ValueError(f"expected {size} words, found {array.shape}")
    return array
