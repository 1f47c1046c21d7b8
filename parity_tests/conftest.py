"""One thread a process, and hypothesis profiles: `ci` is derandomised, `--hypothesis-profile=thorough` looks on."""

import os

from hypothesis import HealthCheck, settings

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")  # before NumPy is there: the tests run side by side, a core each

slow = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile("ci", derandomize=True, deadline=None, max_examples=60, suppress_health_check=slow)
settings.register_profile("thorough", deadline=None, max_examples=2000, suppress_health_check=slow)
settings.load_profile("ci")
