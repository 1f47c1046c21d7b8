"""Samplers that are right and written differently."""

RIGHT = {
    "what is left": (
        """
import json
def shuffled(n, words):
    items, value = list(range(n)), words
    for i in range(n - 1, 0, -1):
        value = (value * 6364136223846793005 + 1442695040888963407) % 2**64
        j = (value >> 33) % (i + 1)
        items[i], items[j] = items[j], items[i]
    return items, (value * 6364136223846793005 + 1442695040888963407) % 2**64
class Place:
    def __init__(self, n, words, left):
        self.n, self.words, self.left = n, words, left
def init_order(n, seed):
    return Place(n, (seed * 0x9E3779B97F4A7C15 + 12345) % 2**64, [])
def next_batch(state, batch_size):
    left, words = state.left, state.words
    if not left:
        left, words = shuffled(state.n, words)
    return left[:batch_size], Place(state.n, words, left[batch_size:])
def save_order(state):
    return json.dumps([state.n, str(state.words), state.left])
def resume_order(text):
    n, words, left = json.loads(text)
    return Place(n, int(words), left)
""",
        ("numpy", "torch"),
    ),
    "a live generator": (
        """
import copy, json
import numpy as np
def init_order(n, seed):
    return {"n": n, "at": 0, "rng": np.random.default_rng(seed), "before": None, "order": None}
def next_batch(state, batch_size):
    state = copy.deepcopy(state)
    if state["order"] is None or state["at"] >= state["n"]:
        state["before"] = state["rng"].bit_generator.state
        state["order"] = np.arange(state["n"], dtype=np.int32)
        state["rng"].shuffle(state["order"])
        state["at"] = 0
    batch = np.array(state["order"][state["at"]:][:batch_size])
    state["at"] += batch.size
    return [batch, state]
def save_order(state):
    rng = state["before"] if state["before"] is not None else state["rng"].bit_generator.state
    return json.dumps([state["n"], state["at"], rng])
def resume_order(text):
    n, at, rng = json.loads(text)
    state = init_order(n, 0)
    state["rng"].bit_generator.state = rng
    return state if at == 0 else next_batch(state, at)[1]
""",
        ("numpy",),
    ),
    "by epoch": (
        """
import json
import torch
def init_order(n, seed):
    words = torch.randint(2**31, (2000,), generator=torch.Generator().manual_seed(seed)).tolist()
    return {"n": n, "words": words, "epoch": 0, "at": 0}
def next_batch(state, batch_size):
    state = dict(state)
    if state["at"] == state["n"]:
        state |= {"epoch": state["epoch"] + 1, "at": 0}
    generator = torch.Generator().manual_seed(state["words"][state["epoch"]])
    batch = torch.randperm(state["n"], generator=generator)[state["at"]:state["at"] + batch_size]
    state["at"] += batch.numel()
    return batch, state
save_order = json.dumps
resume_order = json.loads
""",
        ("torch",),
    ),
}
