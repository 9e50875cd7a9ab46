"""Parts of `Chat`: messages, chat templates, tools, and the alignment of a row with what a template encodes. May import the room's
neighbours below `chat`.
"""
