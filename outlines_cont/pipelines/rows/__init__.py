"""Rows of files: read from JSON Lines, CSV and Parquet, with their schema, and what becomes of each.

Imports `errors`.
"""
