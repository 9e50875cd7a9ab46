"""What differs between the versions of transformers that are supported, and which versions were tested.

`cache_argument`: the name under which the forward of a network takes its KV cache; `untested`: a sentence for errors where the installed
version of transformers or torch is newer than those that were tested, and so may be their cause. Imported without torch.
"""

from __future__ import annotations

import inspect
from importlib.metadata import version
from typing import TYPE_CHECKING

from outlines_cont.errors import UnsupportedModel

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NEWEST_TESTED = {"transformers": (5, 24), "torch": (2, 15)}
"""The newest major and minor version of each package with which the tests pass. The lowest stand in `pyproject.toml`."""

_CACHE_ARGUMENTS = ("past_key_values", "cache", "cache_params")
"""Before transformers 5.24; since then; of recurrent networks before 5.24. Code of others may still have the older names."""


def cache_argument(network: PreTrainedModel) -> str:
    """Return the name of the argument by which the forward of `network` takes a KV cache, such as `"past_key_values"`.

    A forward that takes any name, as that of a wrapper does, is given the one that transformers itself uses.

    Raises:
        UnsupportedModel: there is no such argument: the network has no cache, or this version of transformers has another name for it.
    """
    takes = inspect.signature(network.forward).parameters
    for name in _CACHE_ARGUMENTS:
        if name in takes:
            return name
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in takes.values()):
        from transformers.modeling_outputs import CausalLMOutputWithPast

        return "cache" if "cache" in CausalLMOutputWithPast.__dataclass_fields__ else "past_key_values"
    raise UnsupportedModel(
        f"expected a network that takes a KV cache as `{'`, `'.join(_CACHE_ARGUMENTS)}`, got {type(network).__name__}, whose forward takes "
        f"`{'`, `'.join(takes)}`. Use a decoder-only model whose layers are attention with keys and values.{untested()}"
    )


def complete_outputs(network: PreTrainedModel) -> None:
    """Give the output class of a text model an attribute, None, that the network around it reads and that transformers has left out.

    Without it the forward of `Llama4ForConditionalGeneration` raises an error for all inputs in transformers 5.24.
    """
    from transformers.modeling_outputs import MoeCausalLMOutputWithPast as Output

    if type(network).__name__ == "Llama4ForConditionalGeneration" and not hasattr(Output, "image_outputs"):
        Output.image_outputs = None


def untested() -> str:
    """Return a sentence, after a space, that names the packages that are newer than the tested versions; empty if none is."""
    newer = [(name, tested) for name, tested in NEWEST_TESTED.items() if _parts(version(name)) > tested]
    if not newer:
        return ""
    installed = ", ".join(f"{name} {version(name)}" for name, _ in newer)
    advice = ", ".join(f"{name} {'.'.join(map(str, tested))}" for name, tested in newer)
    return f" Installed is {installed}, which was not tested and may be the cause; the newest tested is {advice}."


def _parts(text: str) -> tuple[int, ...]:
    """Return major and minor version: `(2, 13)` for `"2.13.0+cpu"`."""
    return tuple(int(part) for part in text.split(".")[:2])
