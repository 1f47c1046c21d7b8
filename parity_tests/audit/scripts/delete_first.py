"""Faulty: makes room before the new one is whole."""

import os

import loop


def save(state):
    for name in loop.checkpoints():
        os.unlink(name)
    loop.synchronise_directory()
    loop.replace(f"ckpt-{state['step']}.json", loop.encoded(state))


def load():
    names = loop.checkpoints()
    return loop.read(names[-1]) if names else None


loop.train(save, load)
