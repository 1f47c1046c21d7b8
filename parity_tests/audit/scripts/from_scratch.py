"""Faulty: what cannot be read is taken for none, and all is begun again without a word."""

import os

import loop


def save(state):
    with open("checkpoint.json", "wb") as file:
        file.write(loop.encoded(state))
        file.flush()
        os.fsync(file.fileno())
    loop.synchronise_directory()


def load():
    try:
        return loop.load_one()
    except ValueError:
        return None


loop.train(save, load)
