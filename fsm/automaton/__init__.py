"""The lazy DFA whose states are terms, and its uses: captures, checks, shortest texts, conversion from and to other automata.

States are ints, made when first reached; the derivative of a term by a byte is the next state. Imports `fsm.terms`.
"""
