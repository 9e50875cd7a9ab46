"""Schema documents: references are resolved, keywords of older drafts rewritten to draft 2020-12, and the values split into cases.

A case is a conjunction of places that apply no other schema to the same value. Imports keywords, `fsm.automaton` and `fsm.terms`.
"""
