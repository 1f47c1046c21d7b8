"""What the port is measured to hold and do is what shapes say and named causes; GPT-2 is counted without its memory."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import numpy_ref
from numpy_ref import accounting as reference
from numpy_ref.accounting import GPT2, Transformer, account_rows, account_run, gpt2_rows
from numpy_ref.config import RunConfig
from numpy_ref.data import Dataset
from parity_tests.trainer.test_accounting import WIDE, WIDE_CONFIG, transformers, unexplained, variants

torch = pytest.importorskip("torch", reason="torch is missing: nothing of the port can be measured")
from torch.utils.checkpoint import set_checkpoint_early_stop
from torch.utils.flop_counter import FlopCounterMode

import torch_port
from torch_port import accounting as port

NO_DEVICE = "no CUDA device: the allocator's peak stays unmeasured"
PRECISIONS = ("float32", "float16", "bfloat16")
DIGITS = numpy_ref.load_data("digits")
SMALL = Transformer(layers=2, heads=3, width=21, context=7, vocabulary=64)


@settings(max_examples=settings().max_examples // 4)
@given(variants())
@example((WIDE_CONFIG, WIDE))
@example((replace(WIDE_CONFIG, precision="bfloat16"), WIDE))
@example((replace(WIDE_CONFIG, precision="float16", recompute_segments=2), WIDE))
@example((RunConfig(hidden=(7,), precision="float16", init_scale=2.0**120), WIDE))  # the first update would be skipped
@example((RunConfig(hidden=(), optimizer="sgd", momentum=0.0, recompute_segments=1), WIDE))
@example((RunConfig(hidden=(5,), amsgrad=True, batch_size=100, evaluate_every=1), WIDE))
def test_every_measured_number_is_the_computed_one_and_its_named_causes(case: tuple[RunConfig, Dataset]) -> None:
    assert unexplained(*case, port) == []


@pytest.mark.parametrize("segments", [0, 2])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_both_packages_hold_the_same_and_do_the_same_but_for_named_causes(precision: str, segments: int) -> None:
    config = replace(WIDE_CONFIG, precision=precision, recompute_segments=segments)
    ours, theirs = reference.measure(config, WIDE), port.measure(config, WIDE)
    assert ours[:2] == theirs[:2]
    assert ours.forward_flops == theirs.forward_flops
    causes = [home.differences(config, WIDE) for home in (reference, port)]
    for field, term in (
        ("activations", "operands of products"),
        ("optimizer", "optimizer state"),
        ("step_flops", "FLOPs, step"),
    ):
        apart = [sum(each.get(term, {}).values()) for each in causes]
        assert getattr(theirs, field) - getattr(ours, field) == apart[1] - apart[0]


def test_native_steps_are_counted_since_reproducible_products_may_be_made_of_several() -> None:
    counts = []
    for arithmetic in ("native", "reproducible"):
        run = torch_port.init_run(RunConfig(arithmetic=arithmetic), DIGITS)
        with FlopCounterMode(display=False) as counter:
            torch_port.train_n_steps(run, DIGITS, 1)
        counts.append(counter.get_total_flops())
    assert counts[0] == account_run(RunConfig(), DIGITS).step_flops
    assert counts[1] > counts[0]


# GPT-2


@settings(max_examples=settings().max_examples // 4)
@given(transformers, st.sampled_from(PRECISIONS), st.booleans())
@example(GPT2, "float32", False)
@example(GPT2, "bfloat16", True)
@example(Transformer(1, 1, 1, 1, 1), "float32", True)
def test_gpt2_of_any_size_is_explained_to_the_last_byte_and_operation(
    size: Transformer, precision: str, recompute: bool
) -> None:
    rows = gpt2_rows(port, size, precision=precision, recompute=recompute)
    assert [row.term for row in rows if row.explained is not True] == ["checkpoint file"]
    assert [row.term for row in rows if row.measured is None] == ["checkpoint file"]


@pytest.mark.parametrize("precision", ["fp16", "float64", "Tensor", None])
def test_another_precision_gets_one_clear_error(precision: Any) -> None:
    for call in (port.measure_gpt2, reference.account_gpt2):
        with pytest.raises(ValueError, match=f"{call.__name__}: precision: expected one of .*, found {precision!r}"):
            call(SMALL, precision=precision)


def test_gpt2s_forward_pass_and_step_are_counted_to_the_last_operation() -> None:
    found = port.measure_gpt2()
    assert (found.forward_flops, found.step_flops) == (291_648_307_200, 874_944_921_600)
    assert found.parameters == found.gradients == 4 * 124_337_664
    with set_checkpoint_early_stop(False):  # every product of a block again, needed or not
        assert port.measure_gpt2(recompute=True).step_flops == 1_087_545_802_752


def test_gpt2_is_counted_without_memory_or_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = set()

    def forward(*arguments: Any, real: Any = torch.nn.functional.layer_norm) -> Any:
        seen.add(arguments[0].device.type)
        return real(*arguments)

    monkeypatch.setattr(torch.nn.functional, "layer_norm", forward)
    port.measure_gpt2(SMALL)
    assert seen == {"meta"}


def test_the_table_of_the_port_is_measured_and_explained_throughout() -> None:
    rows = account_rows(torch_port, DIGITS)
    assert [row for row in rows if row.explained is False] == []
    assert {(row.model, row.term) for row in rows if row.measured is None} == {("GPT-2", "checkpoint file")}


# Mutants: a number that is measured otherwise


def measured_otherwise(field: str) -> Any:
    """The port, with one of its measured numbers off by four."""

    def off(measured: Any) -> Any:
        return measured._replace(**{field: getattr(measured, field) + 4})

    return SimpleNamespace(
        measure=lambda *given: off(port.measure(*given)),
        measure_gpt2=lambda *given, **more: off(port.measure_gpt2(*given, **more)),
        differences=port.differences,
        gpt2_differences=getattr(port, "gpt2_differences", None),
    )


@pytest.mark.parametrize(
    "field", ["parameters", "gradients", "activations", "optimizer", "forward_flops", "step_flops"]
)
def test_a_number_that_is_off_is_not_explained(field: str) -> None:
    config, impl = replace(WIDE_CONFIG, hidden=(7, 5)), measured_otherwise(field)
    assert unexplained(config, WIDE, port) == []
    assert unexplained(config, WIDE, impl) != []
    assert any(row.explained is False for row in gpt2_rows(impl, SMALL))


# CUDA


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason=NO_DEVICE)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_on_cuda_the_same_is_held_and_done_and_the_allocators_peak_is_no_less(precision: str) -> None:
    config = replace(WIDE_CONFIG, hidden=(1003, 1003), precision=precision)
    here = port.measure(config, WIDE)
    with torch.device("cuda"):
        there = port.measure(config, WIDE)
        assert unexplained(config, WIDE, port) == []
    assert there[:4] == here[:4]
    assert (there.forward_flops, there.step_flops) == (here.forward_flops, here.step_flops)
    assert here.peak is None
    assert there.peak is not None
    assert there.peak >= there.parameters + there.gradients + there.optimizer - sum(
        port.differences(config, WIDE)["optimizer state"].values()  # kept on the CPU
    )
    again = replace(config, hidden=(1003,) * 8, batch_norm=False, batch_size=56)
    with torch.device("cuda"):
        whole, segments = (port.measure(replace(again, recompute_segments=s), WIDE).activations for s in (0, 3))
    assert segments < whole
