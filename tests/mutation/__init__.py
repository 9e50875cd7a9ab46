"""Mutation testing: `python -m tests.mutation`. One point of the code is changed, and the tests that run it should notice."""
