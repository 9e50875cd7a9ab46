"""Parts of `Chat`: messages, chat templates, tools, and the alignment of a row with what a template encodes.

Imports `state`, `events` and the tokenizer, and nothing that generates.
"""
