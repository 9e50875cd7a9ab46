"""Events of a stream, the feeds that find the changes of a row between two steps, and partial JSON parsing: values of JSON that is
still being written.

Imports `engine`, whose rows the feeds read, and the layers below it.
"""
