"""Two checkpoints side by side: every leaf is aligned by its name, and every difference is found and measured."""

import json
import math
import warnings
from itertools import count
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="torch is missing: there is nothing to read its files with")
safetensors = pytest.importorskip("safetensors.torch", reason="safetensors is missing: its files cannot be written")

from parity_tests.audit.foreign_cases import (
    DTYPES,
    FLOATS,
    a_loop,
    calling,
    found,
    like,
    mutant_tests,
    returning,
    tensor_of,
)
from parity_tests.commands import strict_json
from parity_tests.strategies import small_data
from torch_port import (
    RunConfig,
    init_run,
    interop,
    save_checkpoint,
    save_weights,
    snapshot,
    train_n_steps,
)
from torch_port.audit import foreign
from torch_port.audit.foreign import comparison, files, leaves
from torch_port.audit.foreign.comparison import CHUNK

nn = torch.nn


def test_bits_are_judged_as_bits():
    """-0 is not 0; all NaNs are one; and the worst element is shown."""
    zero, nan = torch.tensor([0.0, 1.0]), torch.tensor([math.nan, 1.0])
    other = nan.clone()
    other.view(torch.int32)[0] ^= 1
    assert found({"w": nan}, {"w": other}) == []
    (change,) = foreign.differences(
        foreign.leaves_of({"w": zero}), foreign.leaves_of({"w": -zero * torch.tensor([1, -1])})
    )
    assert change[2:7] == (0.0, -0.0, 0.0, 1, 1)
    assert found({"w": math.nan}, {"w": math.nan}) == []
    assert found({"w": 0.0}, {"w": -0.0}) == [("w", "value")]
    assert found({"w": zero}, {"w": nan}) == [("w", "value")]
    many = torch.zeros(CHUNK + 5)
    moved = many.clone()
    moved[3], moved[CHUNK + 1] = 1.0, -3.0
    (change,) = foreign.differences(foreign.leaves_of({"w": many}), foreign.leaves_of({"w": moved}))
    assert (change.b, change.distance, change.elements) == (-3.0, 3.0, 2)
    big = 2**62
    (change,) = foreign.differences(
        foreign.leaves_of({"w": torch.tensor([big])}), foreign.leaves_of({"w": torch.tensor([big + 1])})
    )
    assert (change.distance, change.ulps) == (1.0, None)
    pair = torch.tensor([1 + 2j, 3j])
    (change,) = foreign.differences(
        foreign.leaves_of({"w": pair}), foreign.leaves_of({"w": pair + torch.tensor([0, 1j])})
    )
    assert (change.a, change.b, change.distance) == (3.0, 4.0, 1.0)


def test_each_kind_of_change_is_told():
    a = {"x": torch.zeros(2), "y": torch.zeros(2), "z": torch.zeros(2), "n": 1, "l": [1, 2.0], "gone": 1, "t": True}
    b = {"x": torch.zeros(3), "y": torch.zeros(2).half(), "z": 0.0, "n": 1.0, "l": [1, 3.0], "new": 1, "t": 1}
    expected = {"x": "shape", "y": "dtype", "z": "type", "n": "type", "l": "value", "t": "type"}
    expected |= {"gone": "missing", "new": "extra"}
    assert dict(found(a, b)) == expected
    assert found(a, a) == []
    assert found({"l": [1, 2]}, {"l": [1, True]}) == [("l", "type")]
    assert found({"l": [1, 2]}, {"l": [1, 2, 3]}) == [("l", "shape")]


def test_leaves_are_aligned_by_name():
    whole = a_loop()
    model = whole["model_state_dict"]
    for prefix in ("module.", "_orig_mod.", "module._orig_mod.", "model."):
        wrapped = {prefix + name: value for name, value in model.items()}
        assert found(model, wrapped) == found(wrapped, model) == []
        assert found(wrapped, wrapped | {f"{prefix}more": torch.zeros(1)}) == [(f"{prefix}more", "extra")]
    inner = {name.replace("0.", "0._orig_mod."): value for name, value in model.items()}
    assert found(model, inner) == []
    lightning = {
        "epoch": 1,
        "global_step": 7,
        "state_dict": {"model." + name: value for name, value in model.items()},
        "optimizer_states": [whole["optimizer_state_dict"]],
        "lr_schedulers": [whole["scheduler_state_dict"]],
    }
    kept = {name: whole[name] for name in ("epoch", "global_step", "model_state_dict", "optimizer_state_dict")}
    kept["scheduler_state_dict"] = whole["scheduler_state_dict"]
    assert found(kept, lightning) == []
    (change,) = foreign.differences(
        foreign.leaves_of({"net": {"a.w": torch.zeros(1)}}), foreign.leaves_of({"module.a.w": torch.ones(1)})
    )
    assert (change.path, change.other) == ("net/a.w", "module.a.w")
    partly = {"module.a": torch.zeros(1), "b": torch.zeros(1)}
    assert found(partly, {"a": torch.zeros(1), "b": torch.zeros(1)}) == [
        ("a", "extra"),
        ("module.a", "missing"),
    ]


def test_moments_go_by_the_name_of_their_parameter():
    """By the file's own order, beyond doubt or not at all."""
    whole = a_loop()
    names = ["0.weight", "0.bias", "1.weight", "1.bias", "2.weight", "2.bias"]
    leaves = foreign.leaves_of(whole)
    for moment in ("exp_avg", "exp_avg_sq", "step"):
        paths = [path for path in leaves if path.startswith(f"optimizer_state_dict/{moment}/")]
        assert paths == [f"optimizer_state_dict/{moment}/{name}" for name in names]
    alone = foreign.leaves_of({"optimizer": whole["optimizer_state_dict"]})
    assert "optimizer/state/0/exp_avg" in alone
    other = foreign.leaves_of(whole | {"critic": {"w": torch.zeros(2)}})
    assert "optimizer_state_dict/exp_avg/0.weight" in other
    twin = {f"other.{name}": value for name, value in whole["model_state_dict"].items()}
    assert "optimizer_state_dict/state/0/exp_avg" in foreign.leaves_of(whole | {"critic": twin})
    turned = {name: value.t().clone() for name, value in whole["model_state_dict"].items()}
    assert "optimizer_state_dict/state/0/exp_avg" in foreign.leaves_of(whole | {"model_state_dict": turned})
    named = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(list(named.named_parameters())[::-1], momentum=0.9)
    named(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    leaves = foreign.leaves_of({"o": optimizer.state_dict()})
    assert list(leaves)[:2] == ["o/momentum_buffer/bias", "o/momentum_buffer/weight"]
    swapped = {**whole["optimizer_state_dict"]["state"]}
    swapped[1], swapped[3] = swapped[3], swapped[1]
    moved = whole | {"optimizer_state_dict": whole["optimizer_state_dict"] | {"state": swapped}}
    assert ("optimizer_state_dict/exp_avg/0.bias", "value") in found(whole, moved)


def test_moments_go_by_number_where_one_side_has_no_names():
    """A weight of another shape leaves its file's moments without names, and changes no more than that weight."""
    whole = a_loop()
    model = whole["model_state_dict"]
    reshaped = whole | {"model_state_dict": model | {"2.bias": model["2.bias"].reshape(2, 1)}}
    assert "optimizer_state_dict/state/0/exp_avg" in foreign.leaves_of(reshaped)
    for a, b in ((whole, reshaped), (reshaped, whole)):
        assert found(a, b) == [("model_state_dict/2.bias", "shape")]
    old = reshaped["optimizer_state_dict"]
    moved = {number: {**moments} for number, moments in old["state"].items()}
    moved[3]["exp_avg"] = moved[3]["exp_avg"] + 1
    other = reshaped | {"optimizer_state_dict": old | {"state": moved}}
    changes = foreign.differences(foreign.leaves_of(whole), foreign.leaves_of(other))
    assert [(c.path, c.other) for c in changes[1:]] == [
        ("optimizer_state_dict/exp_avg/1.bias", "optimizer_state_dict/state/3/exp_avg")
    ]
    (_, groups) = foreign.differences(
        foreign.leaves_of(whole),
        foreign.leaves_of(
            reshaped
            | {
                "optimizer_state_dict": old
                | {"param_groups": [old["param_groups"][0] | {"params": [1, 0, 2, 3, 4, 5]}]}
            }
        ),
    )
    assert (groups.path, groups.elements) == ("optimizer_state_dict/param_groups/0/params", 2)
    renamed = {name.replace("2.", "head."): value for name, value in model.items()}
    changes = found(whole, whole | {"model_state_dict": renamed})
    assert ("optimizer_state_dict/exp_avg/2.bias", "missing") in changes  # both have names: they decide


OPTIMIZERS = {
    "adam": (torch.optim.Adam, {"amsgrad": True}),
    "adamw": (torch.optim.AdamW, {"weight_decay": 0.25}),
    "sgd": (torch.optim.SGD, {"momentum": 0.5}),
}


def ours_and_stock(folder, name):
    """A file of our own after three steps, and one of a stock optimizer that has taken that state over."""
    kind, settings = OPTIMIZERS[name]
    data = small_data()
    run = train_n_steps(init_run(RunConfig(hidden=(4,), optimizer=name, batch_norm=True, **settings), data), data, 3)
    save_checkpoint(folder / "ours", run)
    state, stock = snapshot(run), kind(run.model.parameters(), lr=run.config.learning_rate, **settings)
    interop.load_into_stock({"model": state.model, "optimizer": state.optimizer}, run.model, stock)
    interop.save_general(folder / "stock", interop.snapshot_general(run.model, stock, epoch=0, loss=0.5))
    return folder / "ours", folder / "stock"


def test_our_own_file_is_aligned_with_one_of_stock_objects(tmp_path):
    for name in OPTIMIZERS:
        ours, stock = ours_and_stock(tmp_path, name)
        found = foreign.diff(ours, stock)
        state = ("model", "optimizer", "scheduler", "scaler")
        assert found.kinds["model"]["equal"] == sum(found.kinds["model"].values()) > 0
        assert all(found.kinds[kind]["differ"] == 0 for kind in state if kind in found.kinds)
        only = {change.path for change in found.changes if change.path.startswith(("optimizer", "config", "schedule"))}
        group = "optimizer_state_dict/param_groups/0/"
        how = {f"{group}{key}" for key in ("params", "foreach", "fused", "capturable", "differentiable")}
        assert only - how <= {"config/initial_lr", "schedule/tick"} | ({"optimizer/t"} if name == "sgd" else set())
        mirrored = foreign.diff(stock, ours)
        assert mirrored.same == found.same
        assert {(c.path, c.change) for c in mirrored.changes} == {
            (c.path, {"missing": "extra", "extra": "missing"}[c.change]) for c in found.changes
        }


def test_what_is_changed_in_an_optimizer_is_named_as_in_our_own_file(tmp_path):
    ours, stock = ours_and_stock(tmp_path, "adam")
    assert {change.change for change in foreign.diff(ours, stock).changes} == {"missing", "extra"}
    for prefix in ("", "module."):
        whole = interop.load_general(stock)
        whole["model_state_dict"] = {f"{prefix}{name}": x for name, x in whole["model_state_dict"].items()}
        optimizer = whole["optimizer_state_dict"]
        optimizer["state"][0]["exp_avg"][0, 0] += 1
        optimizer["state"][1]["exp_avg_sq"][0] += 1
        optimizer["state"][2]["max_exp_avg_sq"][0] += 1
        optimizer["state"][3]["step"] += 1
        optimizer["param_groups"][0] |= {"lr": 0.5, "eps": 0.25, "betas": (0.9, 0.5), "weight_decay": 0}
        torch.save(whole, tmp_path / "changed")
        for a, b in ((ours, tmp_path / "changed"), (tmp_path / "changed", ours)):
            changes = [c for c in foreign.diff(a, b).changes if c.change not in ("missing", "extra")]
            pairs = [(c.path, c.other) if a == ours else (c.other, c.path) for c in changes]
            assert sorted(pairs) == [
                (path, f"optimizer_state_dict/{name}")
                for path, name in (
                    ("config/betas", "param_groups/0/betas"),
                    ("config/eps", "param_groups/0/eps"),
                    ("optimizer/m/layer0.weight", f"exp_avg/{prefix}layer0.weight"),
                    ("optimizer/t", f"step/{prefix}norm0.bias"),
                    ("optimizer/v/layer0.bias", f"exp_avg_sq/{prefix}layer0.bias"),
                    ("optimizer/v_max/norm0.weight", f"max_exp_avg_sq/{prefix}norm0.weight"),
                    ("schedule/rate", "param_groups/0/lr"),
                )
            ]
            (count,) = [c for c in changes if "optimizer/t" in (c.path, c.other)]
            assert (sorted((count.a, count.b)), count.distance) == ([3, 4], 1.0)


def test_differences_come_first_and_each_kind_is_counted(tmp_path):
    model = {name: torch.zeros(2) for name in "uvw"}
    torch.save({"a": 1, "model": model, "step": 2}, tmp_path / "a")
    torch.save({"b": 1, "model": model | {"v": torch.ones(2)}, "step": 2}, tmp_path / "b")
    compared = foreign.diff(tmp_path / "a", tmp_path / "b")
    lines = compared.lines()
    assert [line.split()[0] for line in lines[1:4]] == ["model/v", "a", "b"]
    assert ["model 2 1 0 0", "counter 1 0 0 0", "other 0 0 1 1"] == [" ".join(line.split()) for line in lines[6:9]]
    assert lines[-1] == "3 leaves differ, 3 equal"
    assert compared.json()["kinds"]["model"] == {"equal": 2, "differ": 1, "missing": 0, "extra": 0}


def test_keys_that_make_one_path_are_kept_apart():
    tree = {"a/b": 1, "a": {"b": 2}, 1: 3, "1": 4}
    assert sorted(leaf.value for leaf in foreign.leaves_of(tree).values()) == [1, 2, 3, 4]
    assert found(tree, tree) == []
    assert len(found(tree, tree | {"a": {"b": 5}})) == 1
    assert found({"ema": tree}, {"ema": tree}) == []


def test_a_generator_that_differs_is_told_in_draws():
    generator = torch.Generator().manual_seed(1)
    before = generator.get_state()
    torch.empty(1, dtype=torch.int64).random_(generator=generator)
    a, b = ({"rng": {"torch": state}} for state in (before, generator.get_state()))
    (change,) = foreign.differences(foreign.leaves_of(a), foreign.leaves_of(b))
    assert (change.path, change.change, change.distance) == ("rng/torch", "generator", 1)
    assert change.b.startswith("ahead by one 64-bit draw")
    assert found(a, a) == []
    device = {"cuda_rng_state": torch.zeros(16, dtype=torch.uint8)}
    assert foreign.leaves_of(device)["cuda_rng_state"].kind == "generator"
    assert foreign.leaves_of({"mask": torch.zeros(16, dtype=torch.uint8)})["mask"].form == "tensor"


@given(st.sampled_from(FLOATS), st.sampled_from((1, 7, 64, 1003)), st.integers(0, 2000), st.integers(1, 2))
def test_every_change_is_measured(dtype, size, place, steps):
    """An element moved by so many units in the last place; never over zero, nor into infinity."""
    bits = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    sign = -1 if place % 2 else 1
    x = torch.full((size,), 1.5 * sign).to(dtype)
    y = x.clone()
    y.view(bits)[place % size] += steps
    (change,) = foreign.differences(foreign.leaves_of({"a": x, "b": x}), foreign.leaves_of({"a": y, "b": x}))
    near, far = (t[place % size].double().item() for t in (x, y))
    assert change == ("a", "value", near, far, abs(far - near), steps, 1, "")


@given(st.sampled_from(DTYPES), st.integers(0, 99), st.integers(0, 63), st.integers(0, 7))
def test_every_turned_bit_is_found(dtype, seed, place, bit):
    x = tensor_of(dtype, (8,), seed)
    y = x.clone()
    raw = y.view(torch.uint8)
    raw[place % raw.numel()] ^= 1 << (0 if dtype is torch.bool else bit)
    numbers = [t.to(torch.complex128) if t.is_complex() else t.double() for t in (x, y)]
    equal_nans = (
        torch.isnan(torch.view_as_real(numbers[0]) if x.is_complex() else numbers[0]).sum()
        == torch.isnan(torch.view_as_real(numbers[1]) if x.is_complex() else numbers[1]).sum()
    )
    changed = found({"w": x}, {"w": y})
    element = place % raw.numel() // (dtype.itemsize // (2 if x.is_complex() else 1))
    flat = [torch.view_as_real(t).reshape(-1) if t.is_complex() else t for t in numbers]
    both_nan = equal_nans and all(torch.isnan(t[element]) for t in flat)
    assert changed == ([] if both_nan else [("w", "value")])


def test_the_objects_of_a_run_are_equal_to_its_file_down_to_the_schedule(tmp_path):
    data = small_data()
    settings = RunConfig(hidden=(4,), precision="float16", schedule="step", step_size=2)
    run = train_n_steps(init_run(settings, data), data, 3)
    save_checkpoint(tmp_path / "ours", run)
    save_weights(tmp_path / "weights", run)
    general = interop.snapshot_general(run.model, run.optimizer, run.schedule, run.scaler, epoch=0, loss=0.5)
    interop.save_general(tmp_path / "stock", general)
    kinds = foreign.diff(tmp_path / "ours", tmp_path / "stock").kinds
    for kind in ("model", "optimizer", "scheduler", "scaler"):
        assert kinds[kind]["differ"] == kinds[kind]["missing"] == 0 < kinds[kind]["equal"]
    kinds = foreign.diff(tmp_path / "weights", tmp_path / "stock").kinds
    assert kinds["model"] == {"equal": 4, "differ": 0, "missing": 0, "extra": 0}
    assert kinds["optimizer"]["extra"] == sum(kinds["optimizer"].values())


def quantized(tensor):
    return torch.quantize_per_tensor(tensor, 0.1, 0, torch.qint8)


def test_sparse_and_quantized_tensors_are_compared_by_their_parts():
    dense = torch.tensor([[0.0, 1.0], [2.0, 0.0]])
    moved = torch.tensor([[0.0, 1.0], [3.0, 0.0]])
    for layout in (lambda t: t.to_sparse(), lambda t: t.to_sparse_csr(), lambda t: t.to_sparse_csc(), quantized):
        with warnings.catch_warnings(action="ignore"):  # they are in beta state, or deprecated
            a, b = ({"w": layout(t)} for t in (dense, moved))
        assert found(a, a) == []
        assert found(a, b) == [("w/integers" if layout is quantized else "w/values", "value")]


def test_what_cannot_be_compared_is_not_called_equal(tmp_path):
    loop = []
    loop.append(loop)
    torch.save({"w": torch.ones(1), "x": loop}, tmp_path / "a.pt")
    compared = foreign.diff(tmp_path / "a.pt", tmp_path / "a.pt")
    assert (compared.bitwise, compared.same, compared.uncompared) == (False, 1, ("x/0",))
    assert "not compared: x/0" in compared.lines()


def test_a_tensor_without_data_is_compared_by_its_type_and_shape(tmp_path):
    for name, shape in (("a.pt", 3), ("b.pt", 4)):
        torch.save({"x": torch.ones(1), "m": torch.empty(shape, device="meta")}, tmp_path / name)
    same = foreign.diff(tmp_path / "a.pt", tmp_path / "a.pt")
    assert (same.bitwise, same.same) == (True, 2)
    assert same.lines()[1:] == ["note: m has no data: its type and shape were compared"]
    (change,) = foreign.diff(tmp_path / "a.pt", tmp_path / "b.pt").changes
    assert (change.path, change.a, change.b) == ("m", "float32 (3,)", "float32 (4,)")


def test_lines_and_json_show_all_and_nothing_that_a_terminal_obeys(tmp_path):
    evil = "\x1b[31mred\n"
    a = a_loop() | {evil: torch.ones(1), "text": evil, "nan": math.nan}
    b = a_loop() | {evil: torch.zeros(1), "text": "x", "epoch": 2}
    torch.save(a, tmp_path / "a.pt")
    torch.save(b, tmp_path / "b.pt")
    compared = foreign.diff(tmp_path / "a.pt", tmp_path / "b.pt").json()
    lines = foreign.diff(tmp_path / "a.pt", tmp_path / "b.pt").lines()
    inspected, shown = foreign.inspect(tmp_path / "a.pt").json(), foreign.inspect(tmp_path / "a.pt").lines()
    assert all(line.isprintable() for line in [*lines, *shown])
    assert any(line.startswith("epoch ") for line in lines)
    assert lines[-1].endswith("equal")
    changed = {change["path"] for change in compared["changes"]}
    assert {"epoch", "nan", "text", evil} <= changed
    assert not compared["bitwise"]
    assert len(inspected["leaves"]) == len(foreign.read(tmp_path / "a.pt").leaves)
    assert [kind["kind"] for kind in inspected["kinds"]][:2] == ["model", "optimizer"]
    for value in (compared, inspected):
        text = json.dumps(value).replace("Infinity", '"inf"').replace("NaN", '"nan"')
        strict_json(text)
    equal = foreign.diff(tmp_path / "a.pt", tmp_path / "a.pt").lines()
    assert len(equal) == 1
    assert equal[0].startswith("bitwise: all ")


def test_a_safetensors_file_is_compared_with_one_of_torch(tmp_path):
    model = a_loop()["model_state_dict"]
    safetensors.save_file({f"module.{name}": value for name, value in model.items()}, tmp_path / "a.pt", {"by": "me"})
    torch.save({"model": model}, tmp_path / "b.safetensors")
    compared = foreign.diff(tmp_path / "a.pt", tmp_path / "b.safetensors")
    assert compared.bitwise
    assert compared.same == len(model)
    assert compared.notes == ("the metadata differ: {'by': 'me'} and {}",)
    half = {name: value.half() if value.is_floating_point() else value for name, value in model.items()}
    safetensors.save_file(half, tmp_path / "half")
    assert {c.change for c in foreign.diff(tmp_path / "a.pt", tmp_path / "half").changes} == {"dtype"}


def unseen(*kinds):
    """Of a function that gives a change: it does not see those of some kinds."""
    return calling(lambda right, *x: None if (change := right(*x)) and change.change in kinds else change)


def first_chunk(leaf):
    return leaf._replace(value=leaf.value.reshape(-1)[:CHUNK])


def unnumbered(right, *arguments):
    """Of a function that gives leaves: they are not known by number."""
    for *names, value in right(*arguments):
        yield *names, value._replace(numbered=None) if isinstance(value, foreign.Leaf) else value


def one_name_twice(right, self, *arguments):
    right(self, *arguments)
    path, leaf = self.leaves.popitem()
    self.leaves[path] = leaf._replace(
        name=leaf.name.replace(" (another)", ""), bare=leaf.bare.replace(" (another)", "")
    )


CALLS = count()


def every_second(right, *arguments):
    return [] if next(CALLS) % 2 else right(*arguments)


def settings(**wrong):
    return files, "_settings", calling(lambda right, config: right(config) | wrong)


BITS, KINDS, NAMES = (
    test_bits_are_judged_as_bits,
    test_each_kind_of_change_is_told,
    test_leaves_are_aligned_by_name,
)
MOMENTS, NUMBERS = (
    test_moments_go_by_the_name_of_their_parameter,
    test_moments_go_by_number_where_one_side_has_no_names,
)
CHANGED, OWN = (
    test_what_is_changed_in_an_optimizer_is_named_as_in_our_own_file,
    test_our_own_file_is_aligned_with_one_of_stock_objects,
)
COUNTS = test_differences_come_first_and_each_kind_is_counted
APART, DRIFT = test_keys_that_make_one_path_are_kept_apart, test_a_generator_that_differs_is_told_in_draws
MUTANTS = [
    (comparison, "_codes", calling(lambda right, x: right(x if not x.is_floating_point() else x.abs())), BITS),
    (comparison, "np", lambda np: like(np, isnan=lambda x: np.zeros(x.shape, bool)), BITS),
    (comparison, "_tensors", calling(lambda right, path, *x: right(path, *map(first_chunk, x))), BITS),
    (comparison, "_tensors", calling(lambda right, *x: (c := right(*x)) and c._replace(elements=1)), BITS),
    (comparison, "_worst", calling(lambda right, *x: right(*(y.double() for y in x))), BITS),
    (comparison, "torch", lambda torch: like(torch, view_as_real=lambda z: z.real), BITS),
    (comparison, "change_of", unseen("shape"), KINDS),
    (comparison, "change_of", unseen("dtype"), KINDS),
    (
        comparison,
        "_values",
        calling(lambda right, path, a, b: right(path, a, b) if type(a) is type(b) else None),
        KINDS,
    ),
    (leaves, "bare_names", calling(lambda right, x: x if "_orig_mod." in "".join(x) else right(x)), NAMES),
    (leaves, "bare_names", returning(lambda names: [name.removeprefix("module.") for name in names]), NAMES),
    (comparison, "_parts", returning(lambda a, b: {}), NAMES),
    (
        comparison,
        "_pairs",
        calling(lambda right, a, b: {x: y for x, y in right(a, b).items() if a[x].name == b[y].name}),
        NAMES,
    ),
    (leaves, "parameter_names", calling(lambda right, models, *x: right([*models][:1], *x)), MOMENTS),
    (leaves, "_shapes_fit", returning(lambda *x: True), MOMENTS),
    (
        leaves,
        "parameter_names",
        calling(lambda right, models, groups, *x: right(models, [{"params": g["params"]} for g in groups], *x)),
        MOMENTS,
    ),
    (comparison, "_by_number", returning(lambda leaf, unnamed: leaf), NUMBERS),
    (comparison, "_by_number", calling(lambda right, leaf, unnamed: right(leaf, {leaf.part})), NUMBERS),
    (leaves._Walk, "optimizer", calling(unnumbered), NUMBERS),
    (
        files,
        "_place",
        calling(lambda right, x: None if x.startswith("optimizer/") and x.count("/") > 1 else right(x)),
        CHANGED,
    ),
    (comparison, "_counts", returning(lambda *x: []), CHANGED),
    (comparison, "_counts", calling(every_second), CHANGED),
    (comparison, "_numbers", returning(lambda path, a, b: foreign.Change(path, "type", f"{a}", f"{b}")), CHANGED),
    (files, "_renamed", calling(lambda right, *x: right(*x)._replace(numbered=None)), CHANGED),
    (files, "PLACES", lambda right: right | {"optimizer/t": ("optimizer", "t")}, OWN),
    (files, "SGD_SETTINGS", returning(files.ADAM_SETTINGS), OWN),
    (*settings(decoupled_weight_decay=False), OWN),
    (*settings(maximize=True), OWN),
    (*settings(betas=[]), CHANGED),
    (files, "checkpoint", returning(SimpleNamespace(_decode_scalar=lambda path, name, value: value)), CHANGED),
    (comparison, "ALONE", returning(()), COUNTS),
    (
        comparison,
        "_compare",
        calling(
            lambda right, a, b: (d := right(a, b))._replace(kinds={k: dict.fromkeys(n, 1) for k, n in d.kinds.items()})
        ),
        COUNTS,
    ),
    (leaves._Walk, "add", calling(one_name_twice), APART),
    (leaves, "leaf_of", calling(lambda right, node, *, rng: right(node, rng=True)), DRIFT),
    (comparison, "change_of", unseen("generator"), DRIFT),
]


test_every_law_kills_its_mutants = mutant_tests(MUTANTS)
