"""Numbers as JSON text: ranges digit by digit, multiples of a step by the remainder, decimals as pydantic writes them.

Imports `fsm.terms`.
"""
