"""Reports of a run: scores of values, votes of samples, calibration, and the HTML page that shows them.

Imports `pipelines.rows` and `state`.
"""
