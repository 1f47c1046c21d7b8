"""The reference solutions of `numpy_ref.exercises` in PyTorch, and what hands arrays to a solution written in it."""
