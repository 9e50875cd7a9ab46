"""Schema documents: references are resolved, the words of older drafts read as draft 2020-12, and values split into cases.

A case is a conjunction of places that apply no other schema to the value. Imports keywords, places and formats.
"""
