"""Faulty: the rename may be lost, after the save has returned."""

import loop

loop.train(lambda state: loop.replace("checkpoint.json", loop.encoded(state), directory=False), loop.load_one)
