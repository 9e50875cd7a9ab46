"""Search in text that grows token by token: phrases in a trie, patterns, and stop strings, over bytes and characters.

Imports `fsm`, `errors` and protocols.
"""
