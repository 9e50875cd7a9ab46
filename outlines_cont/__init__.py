"""Continuous structured generation on Hugging Face transformers: chain generators, keep every token.

Names are loaded at their first use (module `__getattr__`), so that importing the package loads neither torch nor transformers. Importing it
before torch makes torch's threads sleep while they wait (`waiting`).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import outlines_cont.waiting  # noqa: F401
from outlines_cont.near_names import module_attributes

if TYPE_CHECKING:
    from outlines_cont import adapters, control, errors, generate, models, pipelines, policies, samplers, templates
    from outlines_cont.adapters.processor import DeviceTables
    from outlines_cont.chat import Chat
    from outlines_cont.checks import DEFAULT_MAX_TOKENS
    from outlines_cont.continuation import continuous
    from outlines_cont.conversation import BatchedExecutor, Conversation, GuidedConversation, Mark, guide
    from outlines_cont.drafts import Proposer
    from outlines_cont.engine.engine import Engine, engine_of
    from outlines_cont.engine.guidance import Guidance
    from outlines_cont.events.event import OpenCall, StreamEvent
    from outlines_cont.generation.options import PieceOptions
    from outlines_cont.generation.stream import StateStream
    from outlines_cont.generation.tasks.progress import Progress, ProgressBar
    from outlines_cont.generation.thinking import Thinking
    from outlines_cont.policies.branch import Branch, TokenSet
    from outlines_cont.policies.policy import Policy, RowView
    from outlines_cont.state.sequence_state import SequenceState, kv_bytes
    from outlines_cont.state.tokens import Tokens
    from outlines_cont.state.views import Span
    from outlines_cont.streams import TokenStream
    from outlines_cont.templates import Template, TemplateBudget, TemplateResult

__version__ = "0.1.0"

__all__ = [
    "DEFAULT_MAX_TOKENS",
    "BatchedExecutor",
    "Branch",
    "Chat",
    "Conversation",
    "DeviceTables",
    "Engine",
    "Guidance",
    "GuidedConversation",
    "Mark",
    "OpenCall",
    "PieceOptions",
    "Policy",
    "Progress",
    "ProgressBar",
    "Proposer",
    "RowView",
    "SequenceState",
    "Span",
    "StateStream",
    "StreamEvent",
    "Template",
    "TemplateBudget",
    "TemplateResult",
    "Thinking",
    "TokenSet",
    "TokenStream",
    "Tokens",
    "adapters",
    "continuous",
    "control",
    "engine_of",
    "errors",
    "generate",
    "guide",
    "kv_bytes",
    "models",
    "pipelines",
    "policies",
    "samplers",
    "templates",
]

_MODULES = ("adapters", "control", "errors", "generate", "models", "pipelines", "policies", "samplers", "templates")
# Where the names are defined, module by module.
_NAMES = {
    "adapters.processor": "DeviceTables",
    "chat": "Chat",
    "checks": "DEFAULT_MAX_TOKENS",
    "continuation": "continuous",
    "conversation": "BatchedExecutor Conversation GuidedConversation Mark guide",
    "drafts": "Proposer",
    "engine.engine": "Engine engine_of",
    "engine.guidance": "Guidance",
    "events.event": "OpenCall StreamEvent",
    "generation.options": "PieceOptions",
    "generation.tasks.progress": "Progress ProgressBar",
    "generation.stream": "StateStream",
    "generation.thinking": "Thinking",
    "policies.branch": "Branch TokenSet",
    "policies.policy": "Policy RowView",
    "state.sequence_state": "SequenceState kv_bytes",
    "state.tokens": "Tokens",
    "state.views": "Span",
    "streams": "TokenStream",
    "templates": "Template TemplateBudget TemplateResult",
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}
_missing = module_attributes(__name__, __all__)


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    return _missing(name)


def __dir__() -> list[str]:
    return __all__
