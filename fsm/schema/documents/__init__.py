"""Schema documents: references are resolved, the words of older drafts read as draft 2020-12, and values split into cases.

A case is a list of places that hold together and apply no other schema to the value. Imports keywords, places and formats.
"""
