"""A server that speaks OpenAI's protocol for one model (extra `serve`): Chat Completions and Completions, streamed or not, with the
constraints of this package. The engine batches all requests; here they are read, limits are checked, and replies are written.
"""
