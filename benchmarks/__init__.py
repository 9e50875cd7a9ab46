"""Measurements, not tests: `python -m benchmarks.masks` and `python -m benchmarks.generate`. README.md holds the tables."""
