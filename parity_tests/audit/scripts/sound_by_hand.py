"""Sound: temporary, fsync, replace, fsync of the directory."""

import loop

loop.train(lambda state: loop.replace("checkpoint.json", loop.encoded(state)), loop.load_one)
