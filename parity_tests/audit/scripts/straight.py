"""Faulty: written straight to its final name."""

import os

import loop


def save(state):
    with open("checkpoint.json", "wb") as file:
        file.write(loop.encoded(state))
        file.flush()
        os.fsync(file.fileno())
    loop.synchronise_directory()


loop.train(save, loop.load_one)
