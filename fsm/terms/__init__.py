"""The algebra of languages over bytes: hash-consed terms, the functions that build and simplify them, and their Brzozowski derivatives.

Imports `fsm.errors` and nothing else of this package.
"""
