"""`record_of`: the arguments of a policy of `ban` or `replace`, as the file of a state holds them; `policy_of`: the policy that they make.
A file holds no other policy, and no expression that is banned.
"""

from __future__ import annotations

import re
from typing import Any

from fsm import Expression
from outlines_cont.policies.ban import Ban, Banned, ban
from outlines_cont.policies.policy import Policy
from outlines_cont.policies.replace import Replace, replace
from outlines_cont.state.kept_options import BanRecord, ReplaceRecord


def record_of(policy: Policy[Any]) -> BanRecord | ReplaceRecord | None:
    """Return what a file holds of a policy; None if it cannot."""
    if type(policy) is Replace:
        return ReplaceRecord(texts=[*policy.texts], at_most=policy.at_most)
    if type(policy) is not Ban or any(isinstance(banned, Expression) for banned in policy.made_by["phrases"]):
        return None
    options = dict(policy.made_by)
    factors = [(banned, float(factor)) for banned, factor in options.pop("phrases").items()]
    return BanRecord(
        texts=[(banned, factor) for banned, factor in factors if isinstance(banned, str)],
        patterns=[(banned.pattern, banned.flags, factor) for banned, factor in factors if not isinstance(banned, str)],
        **options,
    )


def policy_of(record: BanRecord | ReplaceRecord) -> Policy[Any]:
    """Return a policy that equals the one whose `record` this is.

    Raises:
        OptionError, FSMError, re.error: no function has made it.
    """
    if isinstance(record, ReplaceRecord):
        return replace(dict(record.texts), at_most=record.at_most)
    phrases: dict[Banned, float] = dict(record.texts)
    phrases |= {re.compile(pattern, flags): factor for pattern, flags, factor in record.patterns}
    return ban(phrases, **record.model_dump(exclude={"kind", "texts", "patterns"}))
