"""The lazy DFA whose states are terms, and what is read with it: captures, checks, shortest texts, other automata.

States are ints, made when first reached; the derivative of a term by a byte is the next state. Imports `fsm.terms`.
"""
