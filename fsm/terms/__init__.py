"""The algebra of languages over bytes: interned terms, what builds them, and what is computed of a term alone.

Terms are made by functions that simplify as they build, and read by their Brzozowski derivatives. Imports `fsm.errors` and
nothing else of this package.
"""
