"""Make a small model of the same architecture as a named one: few and narrow layers, random weights.

Arguments: the model's name or folder, the class of transformers that makes it, and the folder to save into. The result
is one line of JSON on stdout. Only the configuration of the named model is read.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import Any

LAYERS, HEADS, HEAD_SIZE = 2, 4, 16
SIZES = {
    "num_hidden_layers": LAYERS,
    "encoder_layers": LAYERS,
    "decoder_layers": LAYERS,
    "max_window_layers": LAYERS,
    "num_attention_heads": HEADS,
    "encoder_attention_heads": HEADS,
    "decoder_attention_heads": HEADS,
    "hidden_size": HEADS * HEAD_SIZE,
    "head_dim": HEAD_SIZE,
    "intermediate_size": 2 * HEADS * HEAD_SIZE,
    "n_inner": 2 * HEADS * HEAD_SIZE,
    "moe_intermediate_size": HEADS * HEAD_SIZE,
    "num_experts": HEADS,
    "num_local_experts": HEADS,
    "num_experts_per_tok": 2,
}
"""By their names in transformers' configurations."""


def main() -> None:
    sys.path[0] = os.getcwd()  # not the folder of this file, whose modules may hide the user's
    name, auto_class, into = sys.argv[1:4]
    stdout, sys.stdout = sys.stdout, sys.stderr
    try:
        transformers: Any = importlib.import_module("transformers")
        shape = transformers.AutoConfig.from_pretrained(name)
        shrink(shape)
        model = getattr(transformers, auto_class).from_config(shape)
        model.save_pretrained(into)
        found: dict[str, Any] = {"parameters": sum(p.numel() for p in model.parameters()), "kind": shape.model_type}
    except Exception as error:
        found = {"stage": "model", "error": {"what": f"{type(error).__name__}: {error}", "where": ""}}
    stdout.write("\n" + json.dumps(found) + "\n")


def shrink(shape: Any) -> None:
    """Reduce the sizes of a configuration; key-value heads stay fewer than heads if they are."""
    grouped = getattr(shape, "num_key_value_heads", None) not in (None, getattr(shape, "num_attention_heads", None))
    for name, most in SIZES.items():
        if isinstance(getattr(shape, name, None), int):
            setattr(shape, name, min(most, getattr(shape, name)))
    if getattr(shape, "num_key_value_heads", None) is not None:
        shape.num_key_value_heads = HEADS // 2 if grouped else shape.num_attention_heads
    if isinstance(getattr(shape, "layer_types", None), list):
        shape.layer_types = shape.layer_types[: shape.num_hidden_layers]


if __name__ == "__main__":
    main()
