"""The values of `format`, as the inside of a JSON string: hosts, mailboxes, URIs, dates and times.

Imports `fsm.terms`.
"""
