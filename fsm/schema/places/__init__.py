"""Places of schemas: where each stands, in which draft and resource, and what well-formed values of keywords are.

A draft is known by the URI of its metaschema, a reference by what it leads to. Imports `fsm.terms`, for the types of builders alone.
"""
