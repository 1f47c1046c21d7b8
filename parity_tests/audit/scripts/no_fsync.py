"""Faulty: the name may reach the disk before the bytes."""

import loop

loop.train(lambda state: loop.replace("checkpoint.json", loop.encoded(state), fsync=False), loop.load_one)
