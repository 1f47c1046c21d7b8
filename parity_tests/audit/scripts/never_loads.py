"""Faulty: saves, and never loads."""

import loop

loop.train(lambda state: loop.replace("checkpoint.json", loop.encoded(state)), lambda: None)
