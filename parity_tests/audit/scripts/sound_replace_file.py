"""Sound: this project's `replace_file`."""

import loop

from numpy_ref.checkpoint.durable import replace_file


def save(state):
    with replace_file("checkpoint.json") as file:
        file.write(loop.encoded(state))


loop.train(save, loop.load_one)
