"""The bounds of the exercise `gradient_checkpointing`."""

import numpy as np

from numpy_ref.exercises import gradient_checkpointing as exercise


def test_the_networks_are_within_the_bounds_from_which_the_allowance_is_derived() -> None:
    for seed in range(10, 100, 10):
        for net in exercise.nets(seed):
            z = exercise.forward(net["x"], net["weights"], net["biases"])["pre_activations"]
            assert all(np.all((part == 0) | (np.abs(part) > 2.0**-12)) for part in z)
            assert all(np.any(part == 0) for part in z)
            weights, biases = ([np.abs(part) for part in net[name]] for name in ("weights", "biases"))
            sums = exercise.forward(np.abs(net["x"]), weights, biases)
            sums["pre_activations"] = [part + 1 for part in sums["pre_activations"]]  # no ReLU stops a gradient
            back = exercise.backward(np.abs(net["grad"]), sums, weights)
            arrays = (*sums["activations"], back["grad_x"], *back["grad_weights"], *back["grad_biases"])
            assert all(np.all(part < 2.0**5) for part in arrays)
