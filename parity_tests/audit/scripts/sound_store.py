"""Sound: this project's store, which keeps two and passes over what is damaged."""

import sys

import numpy as np

import numpy_ref
from numpy_ref.checkpoint import store
from numpy_ref.config import RunConfig
from numpy_ref.data import init_dataset

rng = np.random.default_rng(0)
data = init_dataset(rng.standard_normal((23, 3)).astype(np.float32), rng.integers(0, 3, 23), classes=3)
with store.sole_writer("."):
    run = store.resume_newest(numpy_ref, ".", data, set_aside=True).run
    if run is None:
        run = numpy_ref.init_run(RunConfig(hidden=(3,), batch_size=4, evaluate_every=2), data)
        state, fixed = numpy_ref.snapshot(run), "0" * len(run.run_id)  # a random one would differ in every run
        run = numpy_ref.restore(run.config, state, run_id=fixed, fingerprint=run.fingerprint)
    while run.step < 6:
        run = numpy_ref.train_n_steps(run, data, 1)
        sys.stdout.write(f"step {run.step}\n")
        if run.step % 2 == 0:
            store.save_newest(numpy_ref, ".", run, retention=store.Retention(keep_last=2))
