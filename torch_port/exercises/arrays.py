"""PyTorch's tensors for the laws: `Arrays` of `numpy_ref.exercises.exercise`."""

from typing import Any

import numpy as np
import torch

from numpy_ref.exercises.arrays import PLAIN, disturb_global_generators, over_leaves
from numpy_ref.exercises.exercise import Loss, described


class TorchArrays:
    """Arrays of a solution written in PyTorch."""

    framework = "torch"
    kind = "tensor"
    xp = torch

    def given(self, tree: Any) -> Any:
        """See `Arrays`."""
        return over_leaves(
            lambda path, leaf: torch.from_numpy(np.array(leaf)) if isinstance(leaf, np.ndarray) else leaf, tree
        )

    def found(self, where: str, tree: Any) -> Any:
        """See `Arrays`; bfloat16, which NumPy lacks, comes as float32 of the same values."""

        def copied(path: str, leaf: Any) -> Any:
            if isinstance(leaf, torch.Tensor):
                tensor = leaf.detach().cpu()
                return np.array((tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy())
            if isinstance(leaf, PLAIN):
                return leaf
            raise Loss(f"{where} must return {self.kind}s and plain numbers", where=path or where,
                       expected=f"a {self.kind}", found=described(leaf))  # fmt: skip

        return over_leaves(copied, tree, sequence=list)

    def cast(self, array: Any, dtype: str) -> Any:
        """See `Arrays`."""
        return array.to(getattr(torch, dtype))

    def copy(self, array: Any) -> Any:
        """See `Arrays`."""
        return array.clone()

    def overwrite(self, tree: Any) -> None:
        """See `Arrays`."""

        def changed(path: str, leaf: Any) -> Any:
            if isinstance(leaf, torch.Tensor):
                with torch.no_grad():
                    leaf.detach().copy_(leaf * 2 + 1)
            return leaf

        over_leaves(changed, tree)

    def disturb(self) -> None:
        """See `Arrays`."""
        disturb_global_generators()
        torch.rand(1)


ARRAYS = TorchArrays()
