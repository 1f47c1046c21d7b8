"""All rows, in the order in which they are measured."""

from parity_tests.benchmarks import (
    rows_arithmetic,
    rows_background,
    rows_disk,
    rows_growth,
    rows_processes,
    rows_training,
)

ROWS = (
    *rows_arithmetic.ROWS,
    *rows_training.ROWS,
    *rows_disk.ROWS,
    *rows_background.ROWS,
    *rows_growth.ROWS,
    *rows_processes.ROWS,
)
