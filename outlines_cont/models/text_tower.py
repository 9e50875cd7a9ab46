"""`text_tower`: the text model inside a network of images and texts, as a causal language model of its own, so that our forward can run it.
It has the same modules and weights; nothing is copied. `unwrapped` takes a network out of what other libraries put around it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from outlines_cont.errors import UnsupportedModel


class TextTower(nn.Module):
    """A text model for which transformers has no causal language model, with the head of the network that it is from.

    Attributes:
        config: of the text model.
        model: the text model.
        lm_head: the product that gives the logits.
    """

    def __init__(self, model: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.config: Any = model.config
        self.model = model
        self.lm_head = head

    def get_output_embeddings(self) -> nn.Module:
        """Return the head."""
        return self.lm_head


def text_tower(network: Any) -> Any:
    """Return the causal language model of a network's texts, which shares its weights; the network itself where it has none, or is one."""
    body = getattr(network, "model", None)
    tower = getattr(body, "language_model", None) or getattr(body, "text_model", None)
    head = network.get_output_embeddings()
    config = getattr(tower, "config", None)
    if tower is None or head is None or config is None:
        return network
    if getattr(config, "model_type", None) not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        return TextTower(tower, head).train(network.training)
    with torch.device("meta"):  # whose weights take no memory, and are replaced
        shell: Any = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    if type(getattr(shell, "model", None)) is not type(tower) or not hasattr(shell, "lm_head"):
        return network
    shell.model, shell.lm_head = tower, head
    return shell.train(network.training)


def modules_around(tower: Any, network: Any) -> list[nn.Module]:
    """Return the modules of a network whose forwards run that of its text tower; none if the tower is the network."""
    return [] if tower is network else [network, network.model]


def unwrapped(model: Any) -> Any:
    """Return the network of transformers inside of a `PeftModel`, with its adapters, of a compiled module, or of one that several devices
    train; another thing as it is.

    Raises:
        UnsupportedModel: an adapter of PEFT learns a prompt, which the network inside does not have.
    """
    home = type(model).__module__
    if home.startswith("torch._dynamo") and hasattr(model, "_orig_mod"):
        return unwrapped(model._orig_mod)
    if home.startswith("torch.nn.parallel"):
        return unwrapped(model.module)
    if not home.startswith("peft.") or not hasattr(model, "get_base_model"):
        return model
    learned = [name for name, config in model.peft_config.items() if getattr(config, "is_prompt_learning", False)]
    if learned:
        raise UnsupportedModel(
            f"expected adapters inside of the layers, such as those of LoRA, got {learned[0]!r}, which learns a prompt. "
            "Its keys and values belong to no token, so that a state cannot hold them."
        )
    return model.get_base_model()
