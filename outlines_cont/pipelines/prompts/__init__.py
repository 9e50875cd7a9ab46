"""Prompts of rows: a Jinja template, rendered in a sandbox with limits on time and length.

Imports `pipelines.rows`.
"""
