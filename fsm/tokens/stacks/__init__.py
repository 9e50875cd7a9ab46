"""Stacks of grammars: a term as a stack of factors, how a factor begins, and what it reads from a place of a trie on.

`stack_walk.py` makes masks of them. Imports terms, automata and the trie.
"""
