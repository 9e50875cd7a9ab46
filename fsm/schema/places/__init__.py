"""Places: subschemas with their JSON pointers, drafts and resources; the resolution of references; the shapes of keywords.

A draft is known by the URI of its metaschema, a reference by what it leads to. Imports `fsm.terms`, for the types of builders alone.
"""
