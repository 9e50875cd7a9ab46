"""Grammars in the language of Lark: an LALR parser over terminals that are matched by maximal munch.

What Lark itself would refuse or read otherwise is refused with a reason. Imports `fsm.pattern`, `fsm.expression` and what lies below.
"""
