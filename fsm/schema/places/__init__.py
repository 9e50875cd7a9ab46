"""Places: subschemas with their JSON pointers, drafts and resources; the resolution of references; the syntax of keywords' values.

Imports `fsm.terms`, only for the types of builders.
"""
