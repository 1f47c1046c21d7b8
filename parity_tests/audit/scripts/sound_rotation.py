"""Sound: numbered files, two kept, the older deleted last; what is torn is passed over."""

import os

import loop


def save(state):
    loop.replace(f"ckpt-{state['step']}.json", loop.encoded(state))
    for name in loop.checkpoints()[:-2]:
        os.unlink(name)


def load():
    for name in reversed(loop.checkpoints()):
        try:
            return loop.read(name)
        except ValueError:
            continue
    return None


loop.train(save, load)
