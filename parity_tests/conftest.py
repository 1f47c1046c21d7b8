"""Hypothesis profiles: `ci` is derandomised and the default; `--hypothesis-profile=thorough` looks further."""

from hypothesis import HealthCheck, settings

slow = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile("ci", derandomize=True, deadline=None, max_examples=60, suppress_health_check=slow)
settings.register_profile("thorough", deadline=None, max_examples=2000, suppress_health_check=slow)
settings.load_profile("ci")
