"""Batches in OpenAI's file format: `batch_line` reads a line and writes its records, `doors` send requests to an ASGI application in this
process or to a server, `batch_run` runs the lines of a file.

It knows no model and no server of ours: the command line gives it the application.
"""
