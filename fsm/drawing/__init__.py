"""Pictures of automata: a graph of states and labelled edges, simplified for reading, as SVG or DOT.

Imports `fsm.automaton` and `fsm.terms`.
"""
