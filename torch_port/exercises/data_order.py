"""A shuffled data order that resumes in the middle of an epoch.

Write four functions. A sampler's state is yours to choose; it says where in the data the training is. Nothing outside
it may matter: no global generator, no variable that outlives a call. `first_rng` and `draw_order` are given.
"""

import json
from typing import Any

import torch

State = dict[str, Any]
Batch = torch.Tensor


def first_rng(seed: int) -> str:
    """The state of a new generator, as JSON can hold it."""
    return torch.Generator().manual_seed(seed).get_state().numpy().tobytes().hex()


def draw_order(n: int, rng: str) -> tuple[Batch, str]:
    """A permutation of 0, ..., n - 1 drawn by a generator in state `rng`, and the generator's state after it."""
    generator = torch.Generator()
    generator.set_state(torch.frombuffer(bytearray.fromhex(rng), dtype=torch.uint8))
    order = torch.randperm(n, generator=generator)
    return order, generator.get_state().numpy().tobytes().hex()


def init_order(n: int, seed: int) -> State:
    """The state before the first batch of the first epoch.

    Args:
        n: number of samples, >= 1.
        seed: the order of all epochs follows from it; other seeds give other orders.

    Returns:
        The state, of any kind.
    """
    return {"n": n, "rng": first_rng(seed), "consumed": 0}  # the generator as it is before this epoch's draw


def next_batch(state: State, batch_size: int) -> tuple[Batch, State]:
    """The indices of the next batch.

    An epoch goes through all samples in a new random order, each once. Its last batch is as short as need be, but
    never empty, and the next call begins the next epoch.

    Args:
        state: where the training is. It is left as it is: the same state gives the same batch again.
        batch_size: >= 1; it may change from one call to the next, and the order of the samples does not.

    Returns:
        (indices, state): integers in a tensor of one axis, or a list, and the state after this batch.
    """
    n, rng, consumed = state["n"], state["rng"], state["consumed"]
    order, after = draw_order(n, rng)
    if consumed == n:  # the epoch is over
        rng, consumed = after, 0
        order, after = draw_order(n, rng)
    batch = order[consumed : consumed + batch_size]
    return batch, {"n": n, "rng": rng, "consumed": consumed + len(batch)}


def save_order(state: State) -> str:
    """The state as text.

    Args:
        state: as from `init_order`, `next_batch` or `resume_order`.

    Returns:
        JSON, which a file can hold and another process can read.
    """
    return json.dumps(state)


def resume_order(text: str) -> State:
    """The state from the text that `save_order` made.

    Args:
        text: JSON.

    Returns:
        A state from which the batches go on as if nothing had happened.
    """
    state: State = json.loads(text)
    return state
