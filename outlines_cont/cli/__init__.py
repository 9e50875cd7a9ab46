"""What the commands of `outlines-cont` do; `outlines_cont.cli` parses for them and prints what they tell.

Left out: everything that a library user needs. Only `extractor`, `demo` and its table import torch, so that a
wrong path is reported at once.
"""
