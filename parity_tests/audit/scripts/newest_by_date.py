"""Faulty: takes the newest by its date, torn or not."""

import os

import loop


def save(state):
    with open(f"ckpt-{state['step']}.json", "wb") as file:
        file.write(loop.encoded(state))
        file.flush()
        os.fsync(file.fileno())
    loop.synchronise_directory()


def load():
    names = loop.checkpoints()
    return loop.read(max(names, key=os.path.getmtime)) if names else None


loop.train(save, load)
