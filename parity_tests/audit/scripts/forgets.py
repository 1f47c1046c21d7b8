"""Faulty: a sound file that lacks a part of the state."""

import loop


def load():
    state = loop.load_one()
    return state and state | {"velocity": 0.0}


loop.train(lambda state: loop.replace("checkpoint.json", loop.encoded(state)), load)
