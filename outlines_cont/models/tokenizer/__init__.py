"""One tokenizer over several libraries: the bytes of each token, special tokens, and where tokens may begin.

Imports `errors`, `interfaces` and the libraries, each where it is needed.
"""
