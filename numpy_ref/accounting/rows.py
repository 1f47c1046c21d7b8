"""The table: computed beside measured, and what makes the difference."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any, NamedTuple

from numpy_ref.accounting.account import Account, account_gpt2, account_run
from numpy_ref.accounting.gpt2 import GPT2, Transformer
from numpy_ref.accounting.measured import Measured
from numpy_ref.config import RunConfig
from numpy_ref.data import Dataset
from numpy_ref.model import square_root_rule


class Row(NamedTuple):
    """One line of the table: a number computed from shapes, and beside it what was found."""

    model: str
    precision: str
    recompute: str  # what is computed again in the backward pass
    term: str
    computed: int | None  # None for the peak, which is not derived from shapes
    measured: int | None  # None where this implementation cannot carry it out here
    causes: dict[str, int]  # of the difference, or of the peak: what is known to be there, and the rest

    @property
    def difference(self) -> int | None:
        """Measured less computed."""
        return None if self.measured is None or self.computed is None else self.measured - self.computed

    @property
    def explained(self) -> bool | None:
        """Whether the causes account for the difference to the last byte, or operation; None where there is none."""
        return None if self.difference is None else self.difference == sum(self.causes.values())

    @property
    def reason(self) -> str:
        """The causes that are there, as one line."""
        if self.term == "all of these" and any(self.causes.values()):
            return "as above"
        return "; ".join(f"{size:+,} {cause}" for cause, size in self.causes.items() if size)


def account_rows(
    impl: Any, data: Dataset, config: RunConfig | None = None, *, precision: str = "", segments: int | None = None
) -> list[Row]:
    """Computed beside measured: a run's first step, and GPT-2's, which `torch_port` alone measures.

    Args:
        impl: the implementation, a package.
        data: of the run.
        config: of the run, by default `RunConfig()`; its precision and recomputation are replaced by the next two.
        precision: of the layers; by default one after the other.
        segments: computed again, blocks in GPT-2; by default none, and then as many as the square root rule says.
    """
    home, config = import_module(f"{impl.__name__}.accounting"), config or RunConfig()
    cuts = (0, square_root_rule(len(config.hidden) + 1)) if segments is None else (segments,)
    kinds = [(k, cut) for k in ([precision] if precision else ["float32", "float16", "bfloat16"]) for cut in cuts]
    rows = [run_rows(home, replace(config, precision=k, recompute_segments=cut), data) for k, cut in kinds]
    rows += [gpt2_rows(home, precision=k, recompute=cut > 0) for k, cut in kinds if precision or k != "float16"]
    return [row for part in rows for row in part]


def run_rows(home: Any, config: RunConfig, data: Dataset) -> list[Row]:
    """The rows of a run's first step; `home` is the implementation's `accounting`."""
    found, causes = home.measure(config, data), home.differences(config, data)
    causes["checkpoint file"]["header"] = found.header
    segments = config.recompute_segments
    labels = ("MLP", config.precision, f"{segments} segment{'s' * (segments > 1)}" if segments else "nothing")
    return list(_rows(labels, account_run(config, data), found, causes))


def gpt2_rows(home: Any, size: Transformer = GPT2, *, precision: str = "float32", recompute: bool = False) -> list[Row]:
    """The rows of GPT-2's step on one sequence, measured where the implementation can do so without its memory."""
    settings: dict[str, Any] = {"precision": precision, "recompute": recompute}
    found, causes = None, {}
    if hasattr(home, "measure_gpt2"):
        found, causes = home.measure_gpt2(size, **settings), home.gpt2_differences(size, **settings)
    labels = ("GPT-2", precision, "blocks" if recompute else "nothing")
    return list(_rows(labels, account_gpt2(size, **settings), found, causes))


def _rows(
    labels: tuple[str, str, str], account: Account, found: Measured | None, causes: Mapping[str, dict[str, int]]
) -> Iterator[Row]:
    """One row a term."""
    memory = account.memory
    parts = {
        "parameters": (memory.parameters, "parameters"),
        "gradients": (memory.gradients, "gradients"),
        "operands of products": (memory.activations, "activations"),
        "optimizer state": (memory.optimizer, "optimizer"),
    }
    for term, (computed, field) in parts.items():
        yield Row(*labels, term, computed, found and getattr(found, field), causes.get(term, {}))
    everything = {cause: size for term in parts for cause, size in causes.get(term, {}).items()}
    total = found and sum(getattr(found, field) for _, field in parts.values())
    yield Row(*labels, "all of these", memory.total, total, everything)
    if found is not None and found.peak is not None:
        held = {"parameters": memory.parameters, "gradients": memory.gradients, "moments": memory.optimizer}
        held |= causes.get("peak of the step", {})
        held["not derived: activations, temporary arrays"] = found.peak - sum(held.values())
        yield Row(*labels, "peak of the step", None, found.peak, held)
    yield Row(
        *labels, "checkpoint file", account.checkpoint, found and found.checkpoint, causes.get("checkpoint file", {})
    )
    for term, field in (("FLOPs, forward", "forward_flops"), ("FLOPs, step", "step_flops")):
        yield Row(*labels, term, getattr(account, field), found and getattr(found, field), causes.get(term, {}))
