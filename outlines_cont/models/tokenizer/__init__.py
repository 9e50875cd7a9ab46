"""One tokenizer interface over several libraries (`tokenizers`, SentencePiece, mistral-common): the exact bytes of each token, special
tokens as control tokens or ordinary characters, and the search of tokens by prefix for token healing.

There is a backend for each library, which is imported where it is needed. Imports `errors` and `interfaces` only.
"""
