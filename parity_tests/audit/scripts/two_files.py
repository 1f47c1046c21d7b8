"""Faulty: two files, each sound, that are not replaced together."""

import loop


def save(state):
    loop.replace("model.json", loop.encoded({"step": state["step"], "weight": state["weight"]}))
    loop.replace("optimizer.json", loop.encoded({"velocity": state["velocity"]}))


def load():
    parts = [loop.load_one("model.json"), loop.load_one("optimizer.json") or {"velocity": 0.0}]
    return parts[0] and parts[0] | parts[1]


loop.train(save, load)
