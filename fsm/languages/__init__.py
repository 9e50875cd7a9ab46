"""Languages of fixed kinds: a few given texts, free text up to a mark, substrings, account numbers.

Each is one function or one term; `fsm.types` has common ones. Imports `fsm.expression` and the rooms below it.
"""
