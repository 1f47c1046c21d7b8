"""Sound: `torch.save` to a temporary, which is then opened again to be synchronised."""

import os

import loop
import torch


def save(state):
    torch.save(state, "checkpoint.pt.tmp")
    with open("checkpoint.pt.tmp", "rb") as file:
        os.fsync(file.fileno())
    os.replace("checkpoint.pt.tmp", "checkpoint.pt")
    loop.synchronise_directory()


def load():
    return torch.load("checkpoint.pt") if os.path.exists("checkpoint.pt") else None


loop.train(save, load, every=6)
