"""Continuous structured generation on Hugging Face transformers: chain generators, keep every token.

Names are loaded at their first use (module `__getattr__`), so that importing the package loads neither torch nor transformers. Importing it
before torch makes torch's threads sleep while they wait (`waiting`).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import outlines_cont.waiting  # noqa: F401
from outlines_cont.moved import announce_moved, moved_names

if TYPE_CHECKING:
    from outlines_cont import adapters, control, generate, models, pipelines, policies, samplers, templates
    from outlines_cont.adapters.device_tables import DeviceTables
    from outlines_cont.chat import Chat
    from outlines_cont.continuation import continuous
    from outlines_cont.conversation import BatchedExecutor, Conversation, Mark
    from outlines_cont.conversation.guided_conversation import GuidedConversation, guide
    from outlines_cont.conversation.tree import CompletionTree
    from outlines_cont.defaults import DEFAULT_MAX_TOKENS
    from outlines_cont.drafts import Proposer
    from outlines_cont.engine.engine import Engine, engine_of
    from outlines_cont.engine.guided.guidance import Guidance
    from outlines_cont.errors import *
    from outlines_cont.events.event import OpenCall, StreamEvent
    from outlines_cont.generation.options import PieceOptions
    from outlines_cont.generation.state_stream import StateStream
    from outlines_cont.policies.branch import Branch, TokenSet
    from outlines_cont.policies.policy import Policy
    from outlines_cont.policies.row_view import RowView
    from outlines_cont.progress import Progress, ProgressBar
    from outlines_cont.state.sequence_state import SequenceState, kv_bytes
    from outlines_cont.state.tokens import Tokens
    from outlines_cont.state.views import Span
    from outlines_cont.streams import TokenStream
    from outlines_cont.templates import Template, TemplateBudget, TemplateResult

__version__ = "0.1.0"

__all__ = [
    "DEFAULT_MAX_TOKENS",
    "AmbiguousPrompt",
    "BanImpossible",
    "BatchMismatch",
    "BatchedExecutor",
    "Branch",
    "BudgetError",
    "CallbackTimeout",
    "Chat",
    "ChatError",
    "CheckFailed",
    "ClosedError",
    "CompletionTree",
    "ConstraintRequired",
    "ContextLengthError",
    "Conversation",
    "DeadEnd",
    "DeadlockError",
    "DeviceTables",
    "DraftWarning",
    "EmptyPrompt",
    "Engine",
    "ForkBudgetError",
    "Guidance",
    "GuidedConversation",
    "IncompleteOutput",
    "InferenceRequired",
    "InvalidLogits",
    "KVBudgetError",
    "KVShareError",
    "LengthWarning",
    "Mark",
    "MissingEOS",
    "MissingTokenizer",
    "ModelMismatch",
    "ModelNotFound",
    "NoChatTemplate",
    "NoHypothesis",
    "NotPicklable",
    "OpenCall",
    "OptionError",
    "OutlinesContError",
    "PieceOptions",
    "Policy",
    "ProgramCancelled",
    "ProgramTimeout",
    "Progress",
    "ProgressBar",
    "PromptRequired",
    "PromptTypeError",
    "Proposer",
    "ReplayError",
    "ResumeError",
    "RetriesSpent",
    "RowView",
    "SampleMismatch",
    "SamplerError",
    "SavedError",
    "ScriptError",
    "SequenceState",
    "SlicingError",
    "Span",
    "SpecialTokenWarning",
    "StateFileError",
    "StateMismatch",
    "StateStream",
    "StepBudgetError",
    "StreamEvent",
    "Template",
    "TemplateBudget",
    "TemplateBudgetError",
    "TemplateError",
    "TemplateResult",
    "TokenBudgetError",
    "TokenSet",
    "TokenStream",
    "TokenizerError",
    "Tokens",
    "UnboundedWarning",
    "UnknownOption",
    "UnsupportedBranch",
    "UnsupportedModel",
    "UserCodeError",
    "VocabularyMismatch",
    "adapters",
    "continuous",
    "control",
    "engine_of",
    "generate",
    "guide",
    "kv_bytes",
    "models",
    "pipelines",
    "policies",
    "samplers",
    "templates",
]

_MODULES = ("adapters", "control", "generate", "models", "pipelines", "policies", "samplers", "templates")
# Where the names are defined, module by module; the others are errors.
_NAMES = {
    "adapters.device_tables": "DeviceTables",
    "chat": "Chat",
    "continuation": "continuous",
    "conversation": "BatchedExecutor Conversation Mark",
    "conversation.guided_conversation": "GuidedConversation guide",
    "conversation.tree": "CompletionTree",
    "defaults": "DEFAULT_MAX_TOKENS",
    "drafts": "Proposer",
    "engine.engine": "Engine engine_of",
    "engine.guided.guidance": "Guidance",
    "events.event": "OpenCall StreamEvent",
    "generation.options": "PieceOptions",
    "generation.state_stream": "StateStream",
    "policies.branch": "Branch TokenSet",
    "policies.policy": "Policy",
    "policies.row_view": "RowView",
    "progress": "Progress ProgressBar",
    "state.sequence_state": "SequenceState kv_bytes",
    "state.views": "Span",
    "state.tokens": "Tokens",
    "streams": "TokenStream",
    "templates": "Template TemplateBudget TemplateResult",
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    if name in __all__:
        return getattr(import_module(f"{__name__}.{_HOMES.get(name, 'errors')}"), name)
    return moved_names(__name__, {"EngineInterrupted": f"{__name__}.errors.EngineInterrupted"})(name)


def __dir__() -> list[str]:
    return __all__


_OLD_MODULES = {
    "device_tables": "adapters.device_tables",
    "engine.branch": "policies.branch",
    "engine.policy": "policies.policy",
    "executor": "conversation",
    "guidance": "engine.guided.guidance",
    "guided_conversation": "conversation.guided_conversation",
    "models.meter": "meter",
    "options": "generation.options",
    "pipelines.calibration": "pipelines.reports.calibration",
    "pipelines.errors": "pipelines.rows.errors",
    "pipelines.outcome": "pipelines.rows.outcome",
    "pipelines.report": "pipelines.reports.report",
    "pipelines.report_page": "pipelines.reports.report_page",
    "policies.phrase_list": "text_search.phrase_list",
    "sampling.token_counts": "sampling.kernels.token_counts",
    "span": "state.views",
    "streams.event": "events.event",
    "streams.open_call": "events.event",
    "streams.state_stream": "generation.state_stream",
    "streams.stop_text": "text_search.stop_text",
    "tokens": "state.tokens",
    "tree": "conversation.tree",
    "tree_picture": "conversation.tree",
}
announce_moved({f"{__name__}.{old}": f"{__name__}.{new}" for old, new in _OLD_MODULES.items()})
