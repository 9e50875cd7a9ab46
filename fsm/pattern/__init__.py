"""Regular expressions: Python's syntax and ECMA-262's, with look-around, and the text that a leftmost-first match takes.

Every dialect is read into one postfix form, and one compiler makes terms of it. Imports `fsm.expression` and what lies below.
"""
