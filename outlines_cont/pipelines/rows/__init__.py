"""Rows of JSON Lines, text, CSV and Parquet files, the schema of their records, and the outcome of each row.

Imports `errors` and `unknown_option` only.
"""
