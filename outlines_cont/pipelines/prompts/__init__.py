"""Prompts of rows: a Jinja template, filled in a process of its own with bounds on what it may do.

Imports `pipelines.rows`.
"""
