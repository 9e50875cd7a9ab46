"""Prompts of rows: a Jinja template, rendered in a process of its own with limits on time, memory and length.

Imports `pipelines.rows`.
"""
