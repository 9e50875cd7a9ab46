"""One tokenizer over several libraries: the exact bytes of each token, special tokens, and token prefixes for healing.

There is a backend for each library, which is imported where it is needed. Imports `errors` and `interfaces` only.
"""
