"""Data sets, their files and fingerprints; the order of an epoch and the position in it."""

import hashlib
import io
import json
import warnings
import zipfile
from importlib import resources
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from numpy_ref.data import (
    Dataset,
    Position,
    advance,
    epoch_order,
    init_dataset,
    load_data,
    window_indices,
)
from numpy_ref.rng import StreamState, draw_permutation, generator_from, init_stream, stream_state

# Order and position. A loop over batches that may be stopped after any of them and rebuilt from what it saved.


class Saved(NamedTuple):
    """What a checkpoint holds of the data: the position, and the order stream at the start of the epoch."""

    position: Position
    order_state: StreamState


def through_text(saved):
    """A save and a resume, with nothing but text between them."""
    text = json.dumps([*saved.position, saved.order_state.key.tolist(), saved.order_state.pos])
    epoch, consumed, key, pos = json.loads(text)
    return Saved(Position(epoch, consumed), StreamState(np.array(key, np.uint32), pos))


def visits(n, size, batches, stops, resume=through_text):
    """The batches that a loop sees, as (epoch, samples), when stopped and resumed before each batch in `stops`."""
    saved = Saved(Position(0, 0), init_stream(3, "order"))
    order, next_state = epoch_order(saved.order_state, n)
    seen = []
    for batch in range(batches):
        if batch in stops:
            saved = resume(saved)
            order, next_state = epoch_order(saved.order_state, n)
        window = window_indices(order, saved.position.consumed, size)
        seen.append((saved.position.epoch, window.tolist()))
        before = saved.position.epoch
        saved = Saved(*advance(saved.position, saved.order_state, n, len(window), next_state))
        if saved.position.epoch != before:
            order, next_state = epoch_order(saved.order_state, n)
    return seen


@st.composite
def stopped_loops(draw):
    n, size = draw(st.integers(1, 40)), draw(st.integers(1, 12))
    batches = draw(st.integers(1, 3 * -(-n // size) + 1))
    return n, size, batches, draw(st.sets(st.integers(0, batches - 1)))


@given(stopped_loops())
@example((20, 4, 15, {5}))  # resumed exactly at the start of an epoch
@example((20, 4, 15, {0, 4, 6, 9, 14}))
@example((21, 4, 18, set(range(18))))
def test_any_number_of_stops_equals_never_stopping(loop):
    n, size, batches, stops = loop
    assert visits(n, size, batches, stops) == visits(n, size, batches, set())


@given(stopped_loops(), st.integers(1, 3))
def test_every_epoch_sees_every_sample_once(loop, epochs):
    n, size, _, stops = loop
    per_epoch = -(-n // size)
    seen = visits(n, size, epochs * per_epoch, stops)
    assert [epoch for epoch, _ in seen] == [epoch for epoch in range(epochs) for _ in range(per_epoch)]
    for epoch in range(epochs):
        samples = [sample for at, window in seen if at == epoch for sample in window]
        assert sorted(samples) == list(range(n))
    assert {len(window) for _, window in seen} <= {size, n % size or size, n}


def test_consecutive_epochs_have_other_orders():
    seen = visits(20, 20, 6, set())
    assert len({tuple(window) for _, window in seen}) == 6


def position_dropped(saved):
    return Saved(Position(saved.position.epoch, 0), saved.order_state)


def epoch_dropped(saved):
    return Saved(Position(0, saved.position.consumed), saved.order_state)


def order_dropped(saved):
    return Saved(saved.position, init_stream(3, "order"))


def order_key_without_pos(saved):
    return Saved(saved.position, StreamState(saved.order_state.key, 624))


def order_after_the_draw(saved):
    return Saved(saved.position, epoch_order(saved.order_state, 20)[1])


def position_of_a_prefetching_sampler(saved):
    return Saved(Position(saved.position.epoch, min(saved.position.consumed + 4, 19)), saved.order_state)


@pytest.mark.parametrize(
    "mutant",
    [
        position_dropped,
        epoch_dropped,
        order_dropped,
        order_key_without_pos,
        order_after_the_draw,
        position_of_a_prefetching_sampler,
    ],
)
def test_a_resume_that_loses_part_of_the_position_is_seen(mutant):
    stop = {7}  # in epoch 1, after 2 of its 5 batches
    assert visits(20, 4, 15, stop, through_text) == visits(20, 4, 15, set())
    assert visits(20, 4, 15, stop, mutant) != visits(20, 4, 15, set())


@pytest.mark.parametrize("epochs", [1, 4])
@pytest.mark.parametrize("n", [1, 7, 64, 1003])
def test_epoch_orders_are_successive_draws_of_torch_randperm(n, epochs):
    torch = pytest.importorskip("torch", reason="torch is missing: orders cannot be compared with its randperm")
    state = init_stream(11, "order")
    raw = np.zeros(5056, np.uint8)
    raw[8:16].view(np.int32)[:] = 1
    raw[16:24].view(np.uint64)[:] = 624
    raw[24:5016].view(np.uint64)[:] = state.key
    twin = torch.Generator()
    twin.set_state(torch.from_numpy(raw))
    for _ in range(epochs):
        order, state = epoch_order(state, n)
        assert order.dtype == np.int64
        assert order.tolist() == torch.randperm(n, generator=twin).tolist()


def test_an_epochs_order_leaves_the_state_alone_and_repeats():
    state = init_stream(1, "order")
    before = state.key.copy()
    first, after = epoch_order(state, 50)
    again, _ = epoch_order(state, 50)
    assert first.tolist() == again.tolist()
    assert (state.key == before).all()
    assert not np.shares_memory(after.key, state.key)
    generator = generator_from(state)
    draw_permutation(generator, 50)
    assert after.key.tolist() == stream_state(generator).key.tolist()
    assert after.pos == stream_state(generator).pos == 49


def test_one_point_in_time_has_one_representation():
    now, following = init_stream(0, "now"), init_stream(0, "following")
    assert advance(Position(2, 3), now, 10, 6, following) == (Position(2, 9), now)
    assert advance(Position(2, 3), now, 10, 7, following) == (Position(3, 0), following)
    assert advance(Position(0, 0), now, 1, 1, following) == (Position(1, 0), following)


@given(st.integers(2, 30), st.data())
def test_consuming_in_two_parts_equals_consuming_at_once(n, data):
    count = data.draw(st.integers(2, n))
    part = data.draw(st.integers(1, count - 1))
    now, following = init_stream(0, "now"), init_stream(0, "following")
    middle, state = advance(Position(0, 0), now, n, part, following)
    assert advance(middle, state, n, count - part, following) == advance(Position(0, 0), now, n, count, following)


def test_a_window_is_a_copy_and_the_last_one_may_be_short():
    order = np.arange(10)
    window = window_indices(order, 8, 4)
    assert window.tolist() == [8, 9]
    window[:] = 0
    assert order.tolist() == list(range(10))


@pytest.mark.parametrize(
    ("consumed", "size", "message"),
    [
        (10, 4, "consumed: expected an integer from 0 to 9, found 10"),  # the end of an epoch that was not left
        (-1, 4, "consumed: expected"),
        (0, 0, "size: expected"),
        (0, 1.5, "size: expected"),
    ],
)
def test_a_window_outside_the_epoch_is_refused(consumed, size, message):
    with pytest.raises(ValueError, match=message):
        window_indices(np.arange(10), consumed, size)


@pytest.mark.parametrize(
    ("position", "count", "message"),
    [
        (Position(0, 10), 1, r"position\.consumed: expected an integer from 0 to 9, found 10"),
        (Position(0, -1), 1, r"position\.consumed: expected"),
        (Position(-1, 0), 1, r"position\.epoch: expected"),
        (Position(0, 7), 4, "count: expected an integer from 1 to 3, found 4"),
        (Position(0, 7), 0, "count: expected"),
    ],
)
def test_consuming_more_than_the_epoch_has_is_refused(position, count, message):
    state = init_stream(0, "order")
    with pytest.raises(ValueError, match=message):
        advance(position, state, 10, count, state)


# Making a data set


def samples(n=12, d=3):
    return np.arange(n * d, dtype=np.float32).reshape(n, d) / 7, np.arange(n) % 3


def test_every_fifth_sample_is_held_out_and_no_other():
    inputs, labels = samples(23)
    data = init_dataset(inputs, labels)
    held = [4, 9, 14, 19]
    kept = [i for i in range(23) if i not in held]
    assert isinstance(data, Dataset)
    assert data.inputs.tobytes() == inputs[kept].tobytes()
    assert data.labels.tolist() == labels[kept].tolist()
    assert data.test_inputs.tobytes() == inputs[held].tobytes()
    assert data.test_labels.tolist() == labels[held].tolist()
    assert data.classes == 3
    assert [array.dtype for array in data[:4]] == [np.float32, np.int64, np.float32, np.int64]


def test_arrays_are_read_only_contiguous_copies():
    inputs, labels = samples()
    labels = labels.astype(np.int64)
    data = init_dataset(inputs, labels)
    before = data.inputs.copy()
    inputs[:] = -1
    labels[:] = 0
    assert data.inputs.tobytes() == before.tobytes()
    assert data.labels.max() == 2
    for array in data[:4]:
        assert array.flags.c_contiguous
        assert not array.flags.writeable
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


@pytest.mark.parametrize("dtype", [">f4", "<f8", ">f8", ">i2", np.int8, np.uint64, np.float16, np.longdouble])
def test_inputs_of_any_numeric_type_keep_their_values(dtype):
    values = np.arange(36).reshape(12, 3)
    data = init_dataset(values.astype(dtype), np.arange(12) % 3)
    assert data.fingerprint == init_dataset(values.astype(np.float32), np.arange(12) % 3).fingerprint


@pytest.mark.parametrize("dtype", [">i4", np.int8, np.uint8, np.uint64, np.float16, np.float32, ">f8", np.longdouble])
def test_labels_of_any_numeric_type_keep_their_values(dtype):
    inputs, labels = samples()
    assert init_dataset(inputs, labels.astype(dtype)).fingerprint == init_dataset(inputs, labels).fingerprint


def test_lists_booleans_and_other_memory_layouts_are_taken():
    inputs, labels = samples()
    expected = init_dataset(inputs, labels).fingerprint
    assert init_dataset(inputs.tolist(), labels.tolist()).fingerprint == expected
    assert init_dataset(np.asfortranarray(inputs), labels).fingerprint == expected
    assert init_dataset(np.repeat(inputs, 2, axis=0)[::2], np.repeat(labels, 2)[::2]).fingerprint == expected
    assert init_dataset(inputs > 2, labels > 1).classes == 2


def test_float64_inputs_are_rounded_to_nearest_float32():
    inputs, labels = np.full((5, 1), 1 + 2.0**-24 + 2.0**-50), [0, 1, 0, 1, 0]
    assert (init_dataset(inputs, labels).inputs == np.float32(1 + 2.0**-23)).all()


def test_classes_may_exceed_the_labels_present():
    inputs, labels = samples()
    assert init_dataset(inputs, labels, classes=np.int64(7)).classes == 7
    assert init_dataset(inputs, np.zeros(12, int), classes=2).classes == 2


def test_a_fingerprint_covers_every_array_type_and_class_and_is_a_sha256():
    inputs, labels = samples()
    data = init_dataset(inputs, labels)
    layout = [
        ["inputs", "<f4", [10, 3]],
        ["labels", "<i8", [10]],
        ["test_inputs", "<f4", [2, 3]],
        ["test_labels", "<i8", [2]],
    ]
    message = json.dumps({"arrays": layout, "classes": 3}).encode() + b"\n"
    assert data.fingerprint == hashlib.sha256(message + b"".join(a.tobytes() for a in data[:4])).hexdigest()


def fingerprint_law(fingerprint):
    """No two of these data sets, each one change away from the first, have one fingerprint."""
    inputs, labels = samples()
    sets = [init_dataset(inputs, labels), init_dataset(inputs, labels, classes=4)]
    for row, column in ((0, 0), (4, 0), (11, 2)):
        changed = inputs.copy()
        changed[row, column] = np.nextafter(changed[row, column], np.float32(9))
        sets.append(init_dataset(changed, labels))
    for row in (0, 4):
        changed = labels.copy()
        changed[row] = 1 - changed[row] % 2
        sets.append(init_dataset(inputs, changed))
    sets.append(init_dataset(inputs[::-1], labels[::-1]))
    zeros = np.zeros_like(inputs)
    sets += [init_dataset(zeros, labels), init_dataset(-zeros, labels)]
    sets += [init_dataset(np.zeros((12, d)), np.zeros(12, int), classes=2) for d in (2, 4)]
    return len({fingerprint(data) for data in sets}) == len(sets)


def test_any_change_of_the_data_changes_the_fingerprint():
    assert fingerprint_law(lambda data: data.fingerprint)


@pytest.mark.parametrize(
    "mutant",
    [
        lambda data: (data.inputs.tobytes(), data.labels.tobytes(), data.classes),  # forgets the test samples
        lambda data: tuple(array.tobytes() for array in data[:4]),  # forgets the classes
        lambda data: (*(array.tolist().__repr__().replace("-0.0", "0.0") for array in data[:4]), data.classes),
        lambda data: (*(float(array.sum()) for array in data[:4]), data.classes),
    ],
)
def test_a_fingerprint_that_leaves_something_out_is_seen(mutant):
    assert not fingerprint_law(mutant)


def with_value(row, column, value, dtype=np.float64):
    inputs = samples()[0].astype(dtype)
    inputs[row, column] = value
    return inputs


LABELS = samples()[1]


def with_label(row, value, dtype=np.float64):
    labels = LABELS.astype(dtype)
    labels[row] = value
    return labels


@pytest.mark.parametrize(
    ("inputs", "labels", "message"),
    [
        (with_value(7, 2, np.nan), LABELS, r"found 1 of 36 that are not; the first is nan in row 7, column 2"),
        (
            with_value([3, 7], [1, 0], np.inf),
            LABELS,
            r"found 2 of 36 that are not; the first is inf in row 3, column 1",
        ),
        (with_value(0, 0, 1e39), LABELS, r"finite in float32, found 1 .* the first is 1e\+39 in row 0, column 0"),
        (with_value(0, 0, np.nan, np.float16), LABELS, "the first is nan in row 0, column 0"),
        (np.zeros(12), LABELS, r"inputs: expected 2 axes, .* found shape \(12,\)"),
        (np.zeros((12, 2, 2)), LABELS, r"inputs: expected 2 axes, .* found shape \(12, 2, 2\)"),
        (np.zeros((12, 0)), LABELS, r"found shape \(12, 0\)"),
        (np.zeros((4, 2)), LABELS[:4], r"at least 5 samples by 1 input, found shape \(4, 2\)"),
        ([[1, 2], [3]], LABELS, "inputs: expected rows of equal length"),
        (np.zeros((12, 2), object), LABELS, "inputs: expected real numbers, found an array of type object"),
        (np.zeros((12, 2), complex), LABELS, "inputs: expected real numbers, found an array of type complex128"),
        (np.full((12, 2), "1"), LABELS, "inputs: expected real numbers, found an array of type <U1"),
        (np.zeros((12, 2), "M8[s]"), LABELS, "inputs: expected real numbers"),
        (np.ma.zeros((12, 2)), LABELS, "inputs: expected plain numbers, found a masked array"),
        (np.zeros((12, 2)), LABELS[:-1], r"labels: expected one for each of the 12 rows .* found shape \(11,\)"),
        (np.zeros((12, 2)), LABELS[:, None], r"labels: .* found shape \(12, 1\)"),
        (np.zeros((12, 2)), LABELS.astype(object), "labels: expected real numbers, found an array of type object"),
        (np.zeros((12, 2)), LABELS.astype(str), "labels: expected real numbers"),
        (np.zeros((12, 2)), with_label([2, 5], 0.5), r"found 2 of 12 that are not; the first is 0\.5 in row 2"),
        (np.zeros((12, 2)), with_label(11, np.nan), "the first is nan in row 11"),
        (np.zeros((12, 2)), with_label(11, np.inf, np.float16), "the first is inf in row 11"),
        (np.zeros((12, 2)), with_label(1, 1e300), r"the first is 1e\+300 in row 1"),
        (np.zeros((12, 2)), with_label([1, 2, 3], -1, np.int8), "found 3 of 12 that are not; the first is -1 in row 1"),
        (np.zeros((12, 2)), with_label(1, 2**64 - 1, np.uint64), "the first is 18446744073709551615 in row 1"),
        (np.zeros((12, 2)), np.zeros(12, int), "labels: expected at least 2 classes, found only the label 0"),
    ],
)
def test_bad_samples_are_refused_with_the_place(inputs, labels, message):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ValueError, match=message):
            init_dataset(inputs, labels)


@pytest.mark.parametrize("classes", [1, 0, -2, 2.0, True, "3"])
def test_a_number_of_classes_that_is_none_is_refused(classes):
    with pytest.raises(ValueError, match="classes: expected an integer from 2"):
        init_dataset(*samples(), classes=classes)


def test_labels_beyond_the_classes_are_refused():
    with pytest.raises(ValueError, match=r"labels: expected whole numbers from 0 to 1, found 4 of 12 .* row 2"):
        init_dataset(*samples(), classes=2)


# The bundled digits


def digits_in_file_order():
    data = load_data("digits")
    n = len(data.labels) + len(data.test_labels)
    held = np.arange(n) % 5 == 4
    inputs, labels = np.empty((n, 64), np.float32), np.empty(n, np.int64)
    inputs[~held], inputs[held] = data.inputs, data.test_inputs
    labels[~held], labels[held] = data.labels, data.test_labels
    return inputs, labels


def test_digits_hold_the_published_images():
    inputs, labels = digits_in_file_order()
    pixels = inputs * 16
    assert (pixels == np.rint(pixels)).all()
    assert (pixels.min(), pixels.max()) == (0, 16)
    content = pixels.astype(np.uint8).tobytes() + labels.astype(np.uint8).tobytes()
    assert hashlib.sha256(content).hexdigest() == "87ff0c9e40dc7e2c0e34e7257799c2e3f3aec1a016363bb11cad869ec428a826"
    assert np.bincount(labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_digits_are_the_same_at_every_load_and_name_their_authors():
    one, other = load_data("digits"), load_data("digits")
    assert one.fingerprint == other.fingerprint
    assert not np.shares_memory(one.inputs, other.inputs)
    with resources.files("numpy_ref").joinpath("digits.npz").open("rb") as file, np.load(file) as arrays:
        attribution = str(arrays["attribution"])
    assert all(part in attribution for part in ("Alpaydin", "Kaynak", "UCI", "CC BY 4.0"))


# Files of the user's


def npz_bytes(**arrays):
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


@pytest.mark.parametrize("names", [("inputs", "labels"), ("x", "y")])
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_an_npz_file_gives_its_samples(tmp_path, names, save):
    inputs, labels = samples()
    path = tmp_path / "set.NPZ"
    with path.open("wb") as file:
        save(file, **dict(zip(names, (inputs, labels), strict=True)), remark=np.array("ignored"))
    for source in (path, str(path)):
        assert load_data(source).fingerprint == init_dataset(inputs, labels).fingerprint


def test_a_big_endian_npz_file_gives_the_same_samples(tmp_path):
    inputs, labels = samples()
    (tmp_path / "set.npz").write_bytes(npz_bytes(x=inputs.astype(">f8"), y=labels.astype(">i2")))
    assert load_data(tmp_path / "set.npz").fingerprint == init_dataset(inputs, labels).fingerprint


def doubled_npz():
    inputs, labels = samples()
    buffer = io.BytesIO(npz_bytes(inputs=inputs, labels=labels))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zipfile's, about just this
        with zipfile.ZipFile(buffer, "a") as members:
            members.writestr("labels.npy", members.read("labels.npy"))
    return buffer.getvalue()


def damaged_npz():
    raw = bytearray(npz_bytes(inputs=samples()[0], labels=samples()[1]))
    at = raw.index(samples()[0].tobytes())
    raw[at + 20] ^= 1
    return bytes(raw)


def npy_bytes():
    buffer = io.BytesIO()
    np.save(buffer, samples()[0])
    return buffer.getvalue()


def foreign_member():
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as members:
        members.writestr("inputs", b"1,2,3")
        members.writestr("labels", b"1,2,3")
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (npz_bytes(inputs=samples()[0]), "expected arrays named 'inputs' and 'labels', or 'x' and 'y', found 'inputs'"),
        (npz_bytes(inputs=samples()[0], y=samples()[1]), "found 'inputs', 'y'"),
        (npz_bytes(), "found none"),
        (npz_bytes(x=samples()[0].astype(object), y=samples()[1]), "array 'x': .*Object arrays cannot be loaded"),
        (npz_bytes(x=samples()[0], y=samples()[1].astype(object)), "array 'y': .*Object arrays cannot be loaded"),
        (npz_bytes(x=with_value(7, 2, np.nan), y=samples()[1]), "in row 7, column 2"),
        (doubled_npz(), "expected every name once, found 'labels' more than once"),
        (damaged_npz(), "array 'inputs': .*Bad CRC-32"),
        (npz_bytes(x=samples()[0], y=samples()[1])[:-30], "found no readable zip archive"),
        (npy_bytes(), "found no readable zip archive"),
        (b"1,2,3\n", "found no readable zip archive"),
        (b"", "found no readable zip archive"),
        (foreign_member(), "inputs: expected"),
    ],
)
def test_a_bad_npz_file_is_refused_by_name(tmp_path, content, message):
    path = tmp_path / "set.npz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        load_data(path)
    assert str(caught.value).startswith(f"{path}: ")


def csv_text(header="", end="\n"):
    inputs, labels = samples()
    rows = [",".join([*map(repr, row), str(label)]) for row, label in zip(inputs.tolist(), labels, strict=True)]
    return header + end.join(rows) + end


@pytest.mark.parametrize(
    "text",
    [
        csv_text(),
        csv_text("a,b,c,class\n"),
        csv_text("0,1,2,class\n"),
        csv_text('"a, b","c\nd","e","f"\n'),
        csv_text(end="\r\n"),
        csv_text(end="\n\n"),
        "\ufeff" + csv_text(),
        "\ufeff" + csv_text("a,b,c,class\n"),
        csv_text().replace(",2\n", ",2.0\n"),
        csv_text().replace(",", " , "),
    ],
)
def test_a_csv_file_gives_its_samples(tmp_path, text):
    (tmp_path / "set.csv").write_bytes(text.encode())
    assert load_data(tmp_path / "set.csv").fingerprint == init_dataset(*samples()).fingerprint


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected one sample a row, found none"),
        ("a,b,class\n", "expected one sample a row, found none"),
        ("1,2,0\n1,1\n1,2,3,4\n", "line 2: expected 3 fields, found 2; line 3: expected 3 fields, found 4"),
        ("a,b\n1,2,0\n", "line 2: expected 2 fields, found 3"),
        ("1,2,0\n\n1,abc,0\n", "line 3, field 2: expected a finite number, found 'abc'"),
        ("1,2,0\n1,,0\n", "line 2, field 2: expected a finite number, found ''"),
        ("1,2,0\n1,1_0,0\n", "line 2, field 2: expected a finite number, found '1_0'"),
        ("1,nan,0\n1,2,0\n", "line 1, field 2: expected a finite number, found 'nan'"),
        ("1,2,nan\n1,2,0\n", "line 1, field 3: expected a finite number, found 'nan'"),
        ("1,x,0\n1,2,0\n", "line 1, field 2: expected a finite number, found 'x'"),
        ("1,2,0\n1,2,cat\n", "line 2, field 3: expected a finite number, found 'cat'"),
        ("1,2,0\n" + "1,2\n" * 5, "line 4: expected 3 fields, found 2; and 2 more"),
        ("1;2;0\n1;2;1\n", "line 1: expected at least 2 columns with commas, found 1"),
        ('1,2,0\n"1"x,2,0\n', "line 2: expected fields with commas"),
        ("1,2,0\n" * 3, r"inputs: expected 2 axes, at least 5 samples by 1 input, found shape \(3, 2\)"),
        ("1,2,0.5\n" * 6, r"labels: .* the first is 0\.5 in row 0"),
        ("1,1e39,0\n" * 6, r"inputs: .* 1e\+39 in row 0, column 1"),
    ],
)
def test_a_bad_csv_file_is_refused_with_the_line(tmp_path, text, message):
    path = tmp_path / "set.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=message) as caught:
        load_data(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_a_csv_file_in_another_encoding_is_refused(tmp_path):
    (tmp_path / "set.csv").write_bytes("größe,class\n1,0\n".encode("latin-1"))
    with pytest.raises(ValueError, match="expected text in UTF-8"):
        load_data(tmp_path / "set.csv")


@pytest.mark.parametrize("name", ["set.npz", "set.csv"])
def test_a_missing_file_is_named(tmp_path, name):
    with pytest.raises(FileNotFoundError, match=f"{name}: expected a data file, found nothing there"):
        load_data(tmp_path / name)


def test_a_directory_is_no_data_file(tmp_path):
    (tmp_path / "set.npz").mkdir()
    with pytest.raises(ValueError, match="found something that is not a file"):
        load_data(tmp_path / "set.npz")


@pytest.mark.parametrize("source", ["digit", "set.parquet", "set", "", ".csv"])
def test_another_kind_of_source_is_refused(source):
    with pytest.raises(ValueError, match=r"data source: expected 'digits', FILE\.npz or FILE\.csv, found"):
        load_data(source)


def test_an_object_array_in_a_file_never_runs_its_code(tmp_path):
    marker = tmp_path / "ran"

    class Trap:
        def __reduce__(self):
            return (open, (str(marker), "w"))

    (tmp_path / "set.npz").write_bytes(npz_bytes(x=np.array([Trap()] * 5, object), y=np.arange(5) % 2))
    with pytest.raises(ValueError, match="Object arrays cannot be loaded"):
        load_data(tmp_path / "set.npz")
    assert not marker.exists()


def test_a_first_sample_with_a_mistyped_class_is_an_error_and_not_a_header(tmp_path):
    (tmp_path / "set.csv").write_text("0.5,0.5,one\n" + "0.5,0.25,1\n0.75,0.5,0\n" * 5)
    with pytest.raises(ValueError, match="line 1, field 3: expected a finite number, found 'one'"):
        load_data(tmp_path / "set.csv")
    (tmp_path / "set.csv").write_text("0,1,class\n \n" + "0.5,0.25,1\n0.75,0.5,0\n" * 5)
    assert len(load_data(tmp_path / "set.csv").labels) == 8


def test_more_classes_than_samples_must_be_meant():
    inputs = np.eye(6, dtype=np.float32)
    with pytest.raises(ValueError, match="at most as many classes as the 6 samples, found the label 6"):
        init_dataset(inputs, [0, 1, 0, 1, 0, 6])
    assert init_dataset(inputs, [0, 1, 0, 1, 0, 6], classes=7).classes == 7
