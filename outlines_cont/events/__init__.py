"""Streaming: events of running rows, their text as it becomes final or with retractions, and partial values of JSON.

Imports `engine`, `streams` and what lies below.
"""
