"""Events of a stream, the feeds that find what is new in a row, and values of JSON that is still being written.

Imports `engine`, whose rows the feeds read, and the layers below it.
"""
