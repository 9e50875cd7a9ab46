"""One tokenizer over several libraries: the exact bytes of each token, special tokens, and token prefixes for healing.

A backend per library; each library is imported where it is needed. Imports `errors` and `interfaces` only.
"""
