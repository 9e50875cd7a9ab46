"""Pictures of automata: a graph of states and labelled arrows, made small enough to look at, and its SVG.

Imports `fsm.automaton` and `fsm.terms`.
"""
