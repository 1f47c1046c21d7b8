"""Small training loops, each with one fault that people have reported, and sound ones; `python -m parity_tests.zoo`."""
