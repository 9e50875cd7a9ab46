"""Reports of a run: scores, votes of samples, calibration, and the page that shows them.

Imports `pipelines.rows`.
"""
