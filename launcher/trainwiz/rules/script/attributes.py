"""What a wrapper does not have of the model inside."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from trainwiz.engines.names import names
from trainwiz.finding import Level, Violations, remedy, violation
from trainwiz.rules.registry import rule
from trainwiz.script import Script
from trainwiz.script.idioms import unwrapped
from trainwiz.script.names import Assignment
from trainwiz.script.origins import position
from trainwiz.script.tree import Function, dotted, walk, written

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
    if not script.engines.prepared_names or script.says(_FORWARDS):
        return
    told: set[str] = set()
    own = script.once(_own_attributes) | script.once(_asked_inside)
    for node in script.tree.of(ast.Attribute):
        if (node.attr not in _INSIDE and node.attr not in own) or node.attr in told:
            continue
        name = dotted(node.value)
        # A model that went through a list has a name of its own where it is used.
        if name in ("", "self") or not isinstance(node.ctx, ast.Load):
            continue
        wrap = _wrap(script, node.value)
        if wrap is not None and (node.attr in _INSIDE or _is_own(script, node, wrap)):
            told.add(node.attr)
            yield violation(
                "{name} is wrapped, and DDP's wrapper has no {attribute}",
                remedy("ask the model inside: {inside}", inside=unwrapped(script, name)),
                name=name,
                attribute=node.attr,
                place=script.place(node),
            )


def _wrap(script: Script, value: ast.expr, depth: int = 4) -> ast.Call | None:
    """What wrapped the model that a name surely holds here, DDP or accelerate; None also where something asks for it.

    A name that a function is given counts if all of its calls give it a wrapped model.
    """
    if not depth or any(_ASKS.search(written(guard.test)) for guard in script.tree.guards(value)):
        return None
    latest = script.names.latest(dotted(value), value)
    inner = latest is not None and latest.scope in script.tree.above(value)  # of a function within the one that wraps
    if latest is None or not (
        latest.scope is script.tree.scope(value) or (inner and latest.scope is not script.tree.module)
    ):
        given = script.origins.given(dotted(value), value) if latest is None and "." not in dotted(value) else []
        return _only([_wrap(script, one, depth - 1) if dotted(one) else None for one in given])
    made = _unmoved(latest.value)
    if isinstance(made, ast.Name) and not latest.alone:  # `generator, critic = models`
        parts = [_part(one, latest) for one in script.origins.given(made.id, made)]
        return _only([_wrap(script, one, depth - 1) if one is not None else None for one in parts])
    if not isinstance(made, ast.Call):
        return None
    if latest.alone and script.names.resolved(made.func) == _DDP:
        return made if not script.tree.exclusive(latest.node, value) else None
    prepared = script.engines.prepares(latest) and _is_accelerates(script, made) and _may_be_model(latest.name)
    return made if prepared else None


def _only(found: list[ast.Call | None]) -> ast.Call | None:
    """The first of them, where all are something."""
    return found[0] if found and None not in found else None


def _part(value: ast.expr, assignment: Assignment) -> ast.expr | None:
    """What a name gets of a list that is written out."""
    index = position(assignment)
    listed = isinstance(value, ast.List | ast.Tuple) and index is not None and index < len(value.elts)
    return value.elts[index] if listed and dotted(value.elts[index]) else None  # type: ignore[attr-defined]


def _is_accelerates(script: Script, made: ast.Call) -> bool:
    owner = made.func.value if isinstance(made.func, ast.Attribute) else made
    return script.engines.kind(owner) == "Accelerator"


def _may_be_model(name: str) -> bool:
    """Whether something of this name may be a model, and not an optimizer, a loader or a tokenizer."""
    return re.search(r"model|net$|encoder|decoder|policy|actor|critic|transformer", name, re.I) is not None


def _is_own(script: Script, node: ast.Attribute, wrap: ast.Call) -> bool:
    """Whether an attribute is one of the project's class that makes the model, and not one of nn.Module or DDP."""
    if node.attr in script.once(_asked_inside):
        return True
    for kind in _kinds(script, wrap):
        bases = {script.names.resolved(base) for base in kind.bases}
        if node.attr in _attributes(kind) - _OF_MODULES and bases <= {"torch.nn.Module", "nn.Module"}:
            return True
    return False


def _asked_inside(script: Script) -> frozenset[str]:
    """What the script itself asks the model inside a wrapper for: `head` of `model.module.head`."""
    inside = (script.tree.parent(node) for node in script.tree.mentions("module"))
    return frozenset(n.attr for n in inside if isinstance(n, ast.Attribute)) - _OF_MODULES


def _own_attributes(script: Script) -> frozenset[str]:
    """What any class of the project has, so that few names are followed."""
    kinds = script.tree.of(ast.ClassDef) if script.wrappers or script.engines.prepared_names else []
    return frozenset().union(*map(_attributes, kinds)) - _OF_MODULES


def _attributes(kind: ast.ClassDef) -> frozenset[str]:
    """The methods of a class, and what its objects are given when they are made; kept on the node."""
    if "_own_names" not in kind.__dict__:
        methods = [one for one in kind.body if isinstance(one, Function)]
        made = [n for f in methods if f.name == "__init__" for n in walk(f) if isinstance(n, ast.Attribute)]
        stored = {n.attr for n in made if isinstance(n.ctx, ast.Store) and dotted(n.value) == "self"}
        kind._own_names = frozenset(stored.union(f.name for f in methods))  # type: ignore[attr-defined]
    found: frozenset[str] = kind.__dict__["_own_names"]
    return found


def _kinds(script: Script, wrap: ast.Call) -> Iterator[ast.ClassDef]:
    """The classes of the project whose objects a wrapper gets."""
    for given in wrap.args[:1]:
        for maker in map(_unmoved, script.origins.makers(given)):
            own = script.origins.kind(script.names.resolved(maker.func)) if isinstance(maker, ast.Call) else None
            if own is not None:
                yield own


def _unmoved(maker: ast.expr) -> ast.expr:
    """What makes a model that is moved at once: `Model().cuda()`."""
    while isinstance(maker, ast.Call) and isinstance(maker.func, ast.Attribute) and maker.func.attr in _MOVES:
        maker = maker.func.value
    return maker


_MOVES = ("bfloat16", "cuda", "eval", "float", "half", "to", "train")
_OF_MODULES = frozenset(
    names(
        """
        add_module apply bfloat16 broadcast_buffers buffers children compile cpu cuda device device_ids
        device_type dim double eval extra_repr float forward get_buffer get_extra_state get_parameter
        get_submodule half join load_state_dict logger module modules named_buffers named_children named_modules
        named_parameters no_sync parameters process_group reducer register_buffer register_comm_hook
        register_forward_hook register_module register_parameter requires_grad_ scatter set_extra_state
        share_memory state_dict to to_empty train training type xpu zero_grad
        """
    )
)
