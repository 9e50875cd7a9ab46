"""The page that shows states: how each of their tokens came about, and what else was possible. `page` writes it as one file; what it shows
is given as values of JSON. Imports nothing of the package.
"""
