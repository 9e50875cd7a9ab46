"""Streaming: events of running rows, their text as it becomes final or with retractions, and partial values of JSON.

Imports `engine`, `streams` and the rooms below these.
"""
