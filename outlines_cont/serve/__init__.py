"""A server of one model or several (extra `serve`), by the protocols of the room `protocols`, streamed or not, with the constraints of
this package. The engine of a model batches its requests; here they are checked and counted, and replies are sent.
"""
