"""`text_tower`: the text model inside a network of images and texts, as a causal language model of its own, so that our forward can run it.
It has the same modules and weights; nothing is copied.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES


def text_tower(network: Any) -> Any:
    """Return the causal language model of a network's texts, which shares its weights; the network itself where it has none, or is one."""
    body = getattr(network, "model", None)
    tower = getattr(body, "language_model", None) or getattr(body, "text_model", None)
    head = network.get_output_embeddings()
    config = getattr(tower, "config", None)
    if tower is None or head is None or getattr(config, "model_type", None) not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        return network
    with torch.device("meta"):  # whose weights take no memory, and are replaced
        shell: Any = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    if type(getattr(shell, "model", None)) is not type(tower) or not hasattr(shell, "lm_head"):
        return network
    shell.model, shell.lm_head = tower, head
    return shell.train(network.training)
