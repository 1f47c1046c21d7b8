"""What the tests on files of any origin share: tensors and a loop to save, refusals, and the package with a fault."""

import math
from collections import OrderedDict

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is missing: there is nothing to read its files with")

from numpy_ref.checkpoint.container import CheckpointError
from parity_tests.witnesses import package_with_fault
from torch_port.audit import foreign

nn = torch.nn
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2]
FLOATS += [torch.float8_e4m3fnuz, torch.float8_e5m2fnuz]
INTEGERS = [torch.uint8, torch.int8] + [getattr(torch, f"{k}{n}") for k in ("int", "uint") for n in (16, 32, 64)]
DTYPES = [*FLOATS, *INTEGERS, torch.bool, torch.complex64, torch.float8_e8m0fnu]


def tensor_of(dtype, shape, seed):
    """Any bits, NaNs among them."""
    rng = np.random.default_rng(seed)
    if dtype is torch.bool:
        return torch.from_numpy(np.array(rng.integers(0, 2, shape, dtype=np.uint8))).bool()
    data = rng.integers(0, 256, math.prod(shape) * dtype.itemsize, dtype=np.uint8)
    return torch.from_numpy(data).view(dtype).reshape(shape) if data.size else torch.zeros(shape, dtype=dtype)


def a_loop():
    """A general checkpoint, with all kinds of state but a best result."""
    with torch.random.fork_rng():
        model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5)
    model(torch.arange(15.0).reshape(5, 3)).square().sum().backward()
    optimizer.step()
    scheduler.step()
    return OrderedDict(
        epoch=1,
        global_step=7,
        model_state_dict=model.state_dict(),
        optimizer_state_dict=optimizer.state_dict(),
        scheduler_state_dict=scheduler.state_dict(),
        scaler_state_dict=torch.amp.GradScaler("cpu").state_dict(),
        rng={"torch": torch.Generator().manual_seed(1).get_state(), "numpy": np.random.PCG64(1).state},
        ema={name: value.clone() for name, value in model.state_dict().items()},
        sampler={"order": torch.arange(5), "index": 3},
    )


def found(a, b, module=foreign):
    return [(c.path, c.change) for c in module.differences(module.leaves_of(a), module.leaves_of(b))]


def error_of(module, path, **settings):
    with pytest.raises(CheckpointError) as caught:
        module.read(path, **settings)
    text = str(caught.value)
    assert text.startswith(f"{path}: expected ")
    assert ".\n    " in text
    assert text.count("\n") == 1
    return caught.value


def holds(law, module, folder):
    """Hold a law to a module."""
    law(module, *[folder] * ("folder" in law.__code__.co_varnames[: law.__code__.co_argcount]))


def mutant_tests(mutants):
    """Two tests of (old, new, law): a copy without a fault holds every law, and each law is broken by its mutants."""

    @pytest.mark.parametrize("law", list(dict.fromkeys(law for _, _, law in mutants)))
    def without_a_fault(tmp_path, law):
        holds(law, package_with_fault(foreign, "CHUNK = 1 << 18", "CHUNK = 1 << 18 "), tmp_path)

    @pytest.mark.parametrize(
        ("old", "new", "law"), mutants, ids=[f"{i}-{m[2].__name__}" for i, m in enumerate(mutants)]
    )
    def with_a_fault(tmp_path, old, new, law):
        mutant = package_with_fault(foreign, old, new)
        with pytest.raises((Exception, pytest.fail.Exception)):
            holds(law, mutant, tmp_path)

    return without_a_fault, with_a_fault
