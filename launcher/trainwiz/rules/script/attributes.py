"""What a wrapper does not have of the model inside."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from trainwiz.engines.names import names
from trainwiz.finding import Level, Violations, remedy, violation
from trainwiz.rules.registry import rule
from trainwiz.script import Script
from trainwiz.script.tree import dotted

_DDP = "torch.nn.parallel.DistributedDataParallel"
_INSIDE = names(
    """
    add_adapter base_model can_generate compute_transition_scores config disable_adapter dtype
    enable_input_require_grads encode_image encode_text enable_gradient_checkpointing generate generation_config
    get_base_model get_image_features get_input_embeddings get_output_embeddings get_text_features
    gradient_checkpointing_disable gradient_checkpointing_enable merge_adapter merge_and_unload peft_config
    print_trainable_parameters push_to_hub resize_token_embeddings save_pretrained set_adapter tie_weights
    """
)
"""What transformers' and PEFT's models have, and nn.Module and DDP do not."""
_ASKS = re.compile(r"hasattr|isinstance|getattr|module|distribut|ddp|num_processes|world_size|n_gpu|parallel", re.I)
_FORWARDS = re.compile(r"fsdp|fullysharded|fully_shard|deepspeed|tp_plan|parallelism_?config|megatron", re.I)
"""Engines whose wrapper gives on what it does not have."""


@rule("TW748", level=Level.WARNING, field="script")
def wrappers_have_no_attributes_of_the_model(script: Script) -> Violations:
    """Access a DDP model's own attributes and methods through model.module: the wrapper does not have them.

    Without it: on several GPUs, `AttributeError: 'DistributedDataParallel' object has no attribute 'config'`; on one
    GPU, accelerate.prepare does not wrap the model, so a test there passes.
    Why: DistributedDataParallel passes on only forward(). FSDP 1 and DeepSpeed's engine also pass on attributes.
    Instead: use model.module.config, or accelerator.unwrap_model(model).config. In training, call the wrapper itself:
    a method of the module that computes the loss bypasses the averaging of gradients.
    Source: seen with torch 2.13 on two ranks
    """
    if _FORWARDS.search(script.text):
        return
    told: set[str] = set()
    for node in script.tree.of(ast.Attribute):
        name = dotted(node.value)
        if not name or node.attr in told or not isinstance(node.ctx, ast.Load) or name == "self":
            continue
        if (node.attr in _INSIDE or _is_own(script, node)) and _is_wrapped(script, node.value):
            told.add(node.attr)
            yield violation(
                "{name} is wrapped, and DDP's wrapper has no {attribute}",
                remedy("ask the model inside: model.module, or accelerator.unwrap_model(model)"),
                name=name,
                attribute=node.attr,
                place=script.place(node),
            )


def _is_wrapped(script: Script, value: ast.expr) -> bool:
    """Whether a name surely holds a DDP here, or what accelerate prepared, and nothing asks which of them it is."""
    if any(_ASKS.search(ast.unparse(guard.test)) for guard in script.tree.guards(value)):
        return False
    latest = script.names.latest(dotted(value), value)
    if latest is None or latest.scope is not script.tree.scope(value):
        return False
    made = latest.value
    if not isinstance(made, ast.Call):
        return False
    if latest.alone and script.names.resolved(made.func) == _DDP:
        return not script.tree.exclusive(latest.node, value)
    return script.engines.prepares(latest) and _is_accelerates(script, made) and _may_be_model(latest.name)


def _is_accelerates(script: Script, made: ast.Call) -> bool:
    owner = made.func.value if isinstance(made.func, ast.Attribute) else made
    return script.engines.kind(owner) == "Accelerator"


def _may_be_model(name: str) -> bool:
    """Whether something of this name may be a model, and not an optimizer, a loader or a tokenizer."""
    return re.search(r"model|net$|encoder|decoder|policy|actor|critic|transformer", name, re.I) is not None


def _is_own(script: Script, node: ast.Attribute) -> bool:
    """Whether an attribute is a method of the project's class that makes the model, and not one of nn.Module."""
    latest = script.names.latest(dotted(node.value), node)
    if latest is None or not isinstance(latest.value, ast.Call) or not isinstance(script.tree.parent(node), ast.Call):
        return False
    for kind in _kinds(script, latest.value):
        methods = {f.name for f in script.origins.methods(kind.name)}
        bases = {script.names.resolved(base) for base in kind.bases}
        if node.attr in methods - _OF_MODULES and bases <= {"torch.nn.Module", "nn.Module"}:
            return True
    return False


def _kinds(script: Script, wrap: ast.Call) -> Iterator[ast.ClassDef]:
    """The classes of the project whose objects a wrapper gets."""
    for given in wrap.args[:1]:
        for maker in script.origins.makers(given):
            own = script.origins.kind(script.names.resolved(maker.func)) if isinstance(maker, ast.Call) else None
            if own is not None:
                yield own


_OF_MODULES = frozenset(
    names(
        """
        add_module apply bfloat16 buffers children compile cpu cuda double eval extra_repr float forward get_buffer
        get_extra_state get_parameter get_submodule half join load_state_dict modules named_buffers named_children
        named_modules named_parameters no_sync parameters register_buffer register_comm_hook register_forward_hook
        register_module register_parameter requires_grad_ scatter set_extra_state share_memory state_dict to to_empty
        train type xpu zero_grad
        """
    )
)
