"""Faulty: `numpy.save` to the final name, whose array C writes."""

import os

import loop
import numpy as np

NAMES = ("step", "weight", "velocity")


def save(state):
    np.save("checkpoint.npy", np.array([state[name] for name in NAMES]))


def load():
    if not os.path.exists("checkpoint.npy"):
        return None
    step, weight, velocity = np.load("checkpoint.npy").tolist()
    return {"step": int(step), "weight": weight, "velocity": velocity}


loop.train(save, load)
