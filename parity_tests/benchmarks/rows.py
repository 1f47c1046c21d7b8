"""All rows, in the order in which they are measured."""

from parity_tests.benchmarks import rows_compute, rows_disk, rows_growth, rows_processes

ROWS = (*rows_compute.ROWS, *rows_disk.ROWS, *rows_growth.ROWS, *rows_processes.ROWS)
