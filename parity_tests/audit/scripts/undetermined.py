"""Not deterministic: the process's number goes into the weight."""

import os

import loop


def save(state):
    loop.replace("checkpoint.json", loop.encoded(state | {"weight": state["weight"] + os.getpid() * 1e-9}))


loop.train(save, loop.load_one)
