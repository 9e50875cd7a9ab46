"""Incremental search in generated text: many phrases, and stop strings, by Aho-Corasick automata, patterns by DFA simulation, over bytes
or characters.

Imports `fsm`, `errors` and protocols.
"""
