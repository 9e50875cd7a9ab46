"""Schema documents: dialects, resources and references, places, and the words of older drafts.

Whatever a document says is read as draft 2020-12. Imports what a keyword is, and `fsm.terms`.
"""
