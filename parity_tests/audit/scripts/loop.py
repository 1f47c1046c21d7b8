"""What the scripts beside this file share: a regression by momentum on numbers that need no library, and its state."""

import json
import os
import sys

STEPS, EVERY = 12, 4


def fresh():
    return {"step": 0, "weight": 0.5, "velocity": 0.0}


def update(state):
    x = (state["step"] * 7 % 5) / 4
    gradient = (state["weight"] * x - 1.5 * x - 0.25) * x
    state["velocity"] = 0.9 * state["velocity"] + gradient
    state["weight"] -= 0.1 * state["velocity"]
    state["step"] += 1


def train(save, load, every=EVERY):
    """The loop: `load` gives a state or None, `save` takes one."""
    state = load() or fresh()
    while state["step"] < STEPS:
        update(state)
        sys.stdout.write(f"step {state['step']} weight {state['weight']:.6f}\n")
        if state["step"] % every == 0:
            save(state)


def encoded(state):
    return json.dumps(state).encode()


def read(path):
    with open(path, "rb") as file:
        return json.loads(file.read())


def synchronise_directory():
    descriptor = os.open(".", os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def replace(path, data, fsync=True, directory=True):
    """The whole rule, or with a part of it left out."""
    with open(path + ".tmp", "wb") as file:
        file.write(data)
        file.flush()
        if fsync:
            os.fsync(file.fileno())
    os.replace(path + ".tmp", path)
    if directory:
        synchronise_directory()


def checkpoints():
    """Numbered ones, by step."""
    return sorted((name for name in os.listdir() if name.startswith("ckpt-") and name.endswith(".json")), key=number)


def number(name):
    return int(name[5:-5])


def load_one(path="checkpoint.json"):
    return read(path) if os.path.exists(path) else None
