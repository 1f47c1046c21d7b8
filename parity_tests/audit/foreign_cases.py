"""What the tests on files of any origin share: tensors and a loop to save, refusals, and laws that mutants break."""

import math
from collections import OrderedDict
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is missing: there is nothing to read its files with")

from numpy_ref.checkpoint.container import CheckpointError
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


def found(a, b):
    return [(c.path, c.change) for c in foreign.differences(foreign.leaves_of(a), foreign.leaves_of(b))]


def error_of(path, **settings):
    with pytest.raises(CheckpointError) as caught:
        foreign.read(path, **settings)
    text = str(caught.value)
    assert text.startswith(f"{path}: expected ")
    assert ".\n    " in text
    assert text.count("\n") == 1
    return caught.value


FAILURES = (AssertionError, pytest.fail.Exception, CheckpointError, RecursionError, RuntimeError, ValueError, TypeError)


def mutant_tests(mutants):
    """A test that each law, a test function, fails where a function or value is replaced.

    Args:
        mutants: module or class, name in it, what makes the wrong one of the right one, and the law.
    """

    @pytest.mark.parametrize(
        ("where", "name", "wrong", "law"), mutants, ids=[f"{i}-{m[1]}-{m[3].__name__}" for i, m in enumerate(mutants)]
    )
    def with_a_fault(tmp_path, monkeypatch, where, name, wrong, law):
        monkeypatch.setattr(where, name, wrong(getattr(where, name, None)), raising=False)
        with pytest.raises(FAILURES):
            law(*[tmp_path] * law.__code__.co_argcount)

    return with_a_fault


def like(module, **replaced):
    """A module with some of its names replaced."""
    return SimpleNamespace(**vars(module) | replaced)


def returning(value):
    return lambda right: value


def calling(function):
    """The replacement is given the right function and what it is called with."""
    return lambda right: lambda *arguments, **named: function(right, *arguments, **named)
