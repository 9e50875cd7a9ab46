"""Strings, numbers and listed values as JSON text: what all keywords together leave of them, as terms.

Ranges go digit by digit; multiples of a step are counted. Imports keywords, `fsm.automaton` and `fsm.terms`.
"""
