"""Token FSMs: a vocabulary as a byte trie, and for each state of an automaton the mask of the tokens that it allows.

A mask is made when it is first needed, by the first strategy that recognises the state. Imports `fsm.automaton`, `fsm.expression`
(for `TokenFSM` alone) and what lies below.
"""
