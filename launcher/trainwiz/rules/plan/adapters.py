"""Adapters: where they can be trained, with what beneath them, and what becomes of them."""

from __future__ import annotations

from trainwiz import quantities, strategies, tasks
from trainwiz.estimate.experts import left_out
from trainwiz.finding import Level, Violations, remedy, setting, violation
from trainwiz.machine import Machine
from trainwiz.plan import Plan, defaults
from trainwiz.project import Project
from trainwiz.rules.registry import rule
from trainwiz.rules.versions import install, lacks, parts
from trainwiz.vocabulary import spelled

BESIDE = {"qlora": ("bitsandbytes",), "lora": ("gptq", "awq", "bitsandbytes")}
"""The methods of quantized weights that each adapter can be trained beside, the best adapter for a method first."""
HIDDEN = ("gptq", "awq")
"""Those whose layers are no `nn.Linear`, which is what peft looks for."""
_IN_FOUR_BITS = "bitsandbytes"
"""The method whose weights FSDP2 would leave out, and whose scales it does not see."""
_MIXED_SHARDS = (2, 9)
"""The torch that shards parameters of several types together (`type_of_frozen` of the generated sharding.py)."""
# docs/decisions/tasks.md: Routed experts stay in 16 bits under QLoRA
_JOINS_EXPERTS = (5,)
"""The transformers that keeps the experts of a layer as one tensor."""
PACKAGES = {"lora": ("peft>=0.14",), "qlora": ("peft>=0.14", "bitsandbytes>=0.46.1")}


@rule("TW109", level=Level.ERROR, field="model.adapter")
def packages_for_adapters_are_installed(plan: Plan, machine: Machine) -> Violations:
    """Adapters need peft; 4-bit models need bitsandbytes.

    Without it: every rank fails with `ModuleNotFoundError: No module named 'peft'`, or transformers raises an
    ImportError that asks for bitsandbytes when it loads the model.
    Why: only plans with an adapter need these packages, and no other package installs them.
    Instead: run `pip install -r requirements.txt` in the project, or the command that the finding shows.
    Source: seen with transformers 5.23, which asks for bitsandbytes 0.46.1
    """
    missing = [p for p in PACKAGES.get(plan.model.adapter, ()) if lacks(machine, p.partition(">")[0])]
    if missing and machine.interpreter:
        python = machine.interpreter.python
        yield violation(
            "model.adapter is {adapter}, which needs {packages}; not installed in {python}",
            install(python, *missing),
            packages=", ".join(missing),
            python=python,
        )


@rule("TW531", level=Level.ERROR, field="model.adapter")
def adapters_belong_to_models_for_text(plan: Plan) -> Violations:
    """Adapters need a text task and the engine accelerate.

    Without it: the adapter is ignored, and all weights are trained: many times the memory, and a different model.
    Why: the task.py generated for other tasks has no adapter, and the Colossal-AI loop saves whole models.
    Instead: use a text task with engine accelerate, or set model.adapter none.
    Source: seen in the generated scripts
    """
    if plan.model.adapter != "none" and (not tasks.of(plan).adapters or plan.engine != "accelerate"):
        fix = remedy("set model.adapter to none, or choose a text task", {"model.adapter": "none"})
        yield violation("model.adapter is {adapter}, but the task {task} on {engine} trains all weights", fix)


@rule("TW532", level=Level.ERROR, field="model.adapter")
def adapters_need_trained_weights(plan: Plan) -> Violations:
    """An adapter needs a model with trained weights.

    Without it: the generated script creates no adapter and trains all of the random weights. With an adapter, the
    frozen weights would stay random, and the saved adapter would fit a model that nobody else has.
    Why: model.from_scratch creates random weights; an adapter only adds low-rank matrices to them.
    Instead: set model.from_scratch false and use a model with weights; or set model.adapter none.
    Source: seen in the generated scripts; https://arxiv.org/abs/2106.09685
    """
    if tasks.of(plan).adapters and plan.model.adapter != "none" and plan.model.from_scratch:
        yield violation(
            "model.adapter is {adapter}, but {model} starts from random weights, which would never be trained",
            remedy("set model.from_scratch to false, or model.adapter to none", {"model.adapter": "none"}),
            model=plan.model.name,
        )


@rule("TW551", level=Level.ERROR, field="model.adapter")
def quantized_weights_are_not_trained(plan: Plan, project: Project) -> Violations:
    """Quantized weights can only be trained with an adapter, and not with every quantization method.

    Without it: every rank loads the model, and stops with `You cannot perform fine-tuning on purely quantized models`,
    `only Tensors of floating point dtype can require gradients` or a missing package; or only norms are trained.
    Why: weights of 4 or 8 bits have no useful gradients. peft adds LoRA to layers of bitsandbytes, GPTQ and AWQ;
    qlora itself quantizes with bitsandbytes, which conflicts with other methods.
    Instead: use the model in 16 bits, with model.adapter qlora if it is too large; or train lora on GPTQ or AWQ.
    Source: https://huggingface.co/docs/peft/developer_guides/quantization
    """
    method, adapter = project.model.quantized if project.model else "", plan.model.adapter
    if (
        method in HIDDEN
        and adapter == "lora"
        and plan.model.lora_targets == "all-linear"
        and not plan.model.from_scratch
    ):
        yield violation(
            "{name} is quantized by {method}, and model.lora_targets all-linear does not find its matrices",
            remedy("name them, like model.lora_targets: q_proj,k_proj,v_proj,o_proj"),
            name=plan.model.name,
            method=method,
            where="model.lora_targets",
        )
    if not method or plan.model.from_scratch or method in BESIDE.get(adapter, ()):
        return
    fits = next((name for name, methods in BESIDE.items() if method in methods), None)
    if fits:
        yield violation(
            "{name} is quantized by {method}, but model.adapter is {adapter}",
            remedy("set model.adapter to {fits}, or use the model in 16 bits", {"model.adapter": fits}, fits=fits),
            name=plan.model.name,
            method=method,
        )
    else:
        yield violation(
            "{name} is quantized by {method}; trainwiz cannot train an adapter on it",
            remedy("use the model in 16 bits; model.adapter qlora quantizes it during loading"),
            name=plan.model.name,
            method=method,
        )


# docs/decisions/tasks.md: QLoRA off CUDA is a warning, not an error
@rule("TW533", level=Level.WARNING, field="model.adapter")
def four_bits_need_cuda(plan: Plan) -> Violations:
    """QLoRA should run on CUDA devices.

    Without it: on a CPU it trains, but the code is slower than the 16-bit code, and the 4-bit weights only save
    host memory. bitsandbytes before 0.43 stops with `No GPU found. A GPU is needed for quantization.`
    Why: the kernels that multiply with 4-bit weights are written for CUDA.
    Instead: set model.adapter lora.
    Source: seen with bitsandbytes 0.50.2 on a CPU; https://huggingface.co/docs/bitsandbytes/main/en/installation
    """
    if plan.model.adapter == "qlora" and plan.machine.device != "cuda":
        yield violation("model.adapter is qlora, but machine.device is {device}", setting("model.adapter", "lora"))


# docs/decisions/loop.md: A model published in four bits keeps its bytes
@rule("TW534", level=Level.ERROR, field="strategy.kind")
def four_bits_are_made_where_they_are_sharded(plan: Plan, machine: Machine, project: Project) -> Violations:
    """QLoRA under FSDP needs torch 2.9 or newer, and a model in 16 bits or in NF4 with double quantization.

    Without it: with qlora, every rank stops while it loads the model, and says what is missing. With lora on a 4-bit
    model, it trains, but writing the adapter at the end fails: `RuntimeError: Attempted to access the data pointer on
    an invalid python storage`.
    Why: FSDP2 shards parameters, but bitsandbytes keeps the scales of a 4-bit weight beside it. The generated
    four_bits.py, part of projects with qlora, packs both into one parameter, if the scales are quantized as QLoRA does
    it. transformers loads the experts of a layer as one tensor, where their files have a matrix for each. Before 2.9,
    FSDP2 shards parameters of one type alone, and the adapter is in fp32.
    Instead: use the model in 16 bits, which is quantized while it is loaded, or install a newer torch; or use ddp, if
    each GPU can hold all of the 4-bit weights.
    Source: the generated four_bits.py and sharding.py; https://huggingface.co/docs/bitsandbytes/main/en/fsdp_qlora
    """
    if plan.model.adapter == "none" or plan.model.from_scratch or not strategies.of(plan).builds_once:
        return
    model = project.model
    if model and model.quantized == _IN_FOUR_BITS:
        joined = model.transformer is not None and model.transformer.joined_weights > 0
        if not model.nested_nf4 or joined:
            yield violation(
                "{name} is already quantized by {method}, which FSDP cannot shard",
                remedy("use the model in 16 bits, or set strategy.kind to ddp", {"strategy.kind": "ddp"}),
                name=plan.model.name,
                method=model.quantized,
            )
        elif plan.model.adapter != "qlora":
            yield violation(
                "{name} is already quantized by {method}, which FSDP can shard only with model.adapter qlora",
                setting("model.adapter", "qlora"),
                name=plan.model.name,
                method=model.quantized,
            )
    if plan.model.adapter != "qlora":
        return
    torch = machine.interpreter.packages.get("torch") if machine.interpreter else None
    if machine.interpreter and torch and parts(torch) < _MIXED_SHARDS:
        yield violation(
            "torch {version} cannot shard 4-bit weights beside an adapter in fp32; FSDP can from {needed} on",
            install(machine.interpreter.python, "torch>=2.9"),
            version=torch,
            needed="2.9",
        )


@rule("TW557", level=Level.ERROR, field="strategy.zero3_init")
def four_bits_are_made_on_the_device(plan: Plan) -> Violations:
    """QLoRA under ZeRO 3 cannot be sharded while the model is built.

    Without it: each rank stops while it loads the model: `ValueError: DeepSpeed Zero-3 is not compatible with passing a
    device_map`.
    Why: zero.Init shards weights as they are created, but bitsandbytes converts whole weights to 4 bits, on a device
    set in a device_map.
    Instead: set strategy.kind to fsdp, where no GPU ever holds the whole 4-bit model; or set strategy.zero3_init to
    false: each GPU then holds it until DeepSpeed shards it, even if it is offloaded (TW329).
    Source: seen with bitsandbytes 0.50.2, DeepSpeed 0.19.8 and transformers 5.23 on 2 CPU ranks: with zero.Init they
    stop, without it each loads all weights, and then trains with half of them, offloaded or not, to the same losses
    """
    strategy = strategies.of(plan)
    if plan.model.adapter == "qlora" and strategy.partitions_weights and plan.strategy.zero3_init:
        yield violation(
            "model.adapter is qlora, but 4-bit weights cannot be sharded while the model is built",
            setting("strategy.zero3_init", False),
        )


@rule("TW539", level=Level.ERROR, field="model.frozen")
def parameters_can_be_frozen(plan: Plan) -> Violations:
    """model.frozen needs single, ddp or fsdp, and no adapter: an adapter freezes all other parameters itself.

    Without it: all parameters are trained; the scripts are the same as without it. With an adapter, the names would
    match the adapter's own matrices.
    Why: DeepSpeed's converter for other numbers of ranks and Colossal-AI's plugins were not tested with frozen
    parameters.
    Instead: use single, ddp or fsdp; for an adapter, choose its layers with model.lora_targets.
    Source: the generated frozen.py
    """
    if plan.model.frozen is None:
        return
    if not strategies.of(plan).own_parameters:
        yield violation(
            "model.frozen is {frozen}, but under {strategy} all parameters are trained",
            remedy("leave {key} empty", {"model.frozen": None}, key="model.frozen"),
            strategy=plan.strategy.label,
        )
    elif plan.model.adapter != "none":
        yield violation(
            "model.frozen is {frozen}, but with an adapter the whole model is frozen",
            remedy("leave {key} empty", {"model.frozen": None}, key="model.frozen"),
        )
    elif any(not part.strip(" *") for part in plan.model.frozen.split(",")):
        yield violation(
            "model.frozen is {frozen}, which every parameter's name matches: nothing would be trained",
            remedy("name the parts that stay as they are: embed,layers.0.", {"model.frozen": None}),
        )


@rule("TW541", level=Level.ERROR, field="model.neftune_alpha")
def noise_has_embeddings(plan: Plan) -> Violations:
    """NEFTune needs a language model trained with accelerate.

    Without it: no noise is added; the scripts are the same as without it.
    Why: the noise is added to token embeddings. Image models and your own models have none, encoders were not tested,
    and the Colossal-AI loop does not add it.
    Instead: set model.neftune_alpha to 0.
    Source: the generated noise.py
    """
    if plan.model.neftune_alpha and not (tasks.of(plan).generative and plan.engine == "accelerate"):
        yield violation(
            "model.neftune_alpha is {neftune_alpha}, but it has no effect on the task {task} under {engine}",
            setting("model.neftune_alpha", 0.0),
            task=plan.task,
            engine=plan.engine,
        )


ADAPTED = (
    "model.lora_rank",
    "model.lora_alpha",
    "model.lora_targets",
    "model.lora_dropout",
    "model.lora_rslora",
    "model.lora_dora",
    "model.modules_to_save",
    "model.merge_adapter",
)
"""Keys that say how an adapter is trained and saved."""


@rule("TW548", level=Level.WARNING, field="model.adapter")
def settings_of_an_adapter_have_one(plan: Plan) -> Violations:
    """Adapter settings have no effect if model.adapter is none.

    Without it: all weights are trained, with many times the memory of an adapter, and at the learning rate that was
    chosen for one; the settings are silently omitted from the scripts.
    Why: model.lora_rank, lora_alpha, lora_targets, lora_dropout, lora_rslora, lora_dora, modules_to_save and
    merge_adapter belong to the adapter set in model.adapter. Without one, every module is fully trained, including
    those in modules_to_save.
    Instead: set model.adapter to lora or qlora; to train all weights, remove these keys from the plan. To train only
    some modules, freeze the others with model.frozen.
    Source: the generated adapter.py, which exists only with an adapter
    """
    usual = {**defaults(), "model.lora_alpha": 2 * defaults()["model.lora_rank"]}
    chosen = {key: plan.get(key) for key in ADAPTED if plan.get(key) != usual[key]}
    if plan.model.lora_alpha == 2 * plan.model.lora_rank:
        chosen.pop("model.lora_alpha", None)  # which nobody chose: `decide` sets it
    if plan.model.adapter == "none" and chosen:
        can = tasks.of(plan).adapters and plan.engine == "accelerate" and not plan.model.from_scratch
        changes = {key: usual[key] for key in chosen}
        yield violation(
            "model.adapter is none, so all weights are trained and these adapter settings have no effect: {settings}",
            remedy("set model.adapter to lora, or remove {keys} from the plan", changes, keys=", ".join(chosen))
            if can
            else remedy("remove {keys} from the plan", changes, keys=", ".join(chosen)),
            settings=", ".join(f"{key} {spelled(value)}" for key, value in chosen.items()),
        )


@rule("TW566", level=Level.WARNING, field="model.lora_targets")
def modules_are_adapted_or_trained_whole(plan: Plan) -> Violations:
    """A module is either adapted (model.lora_targets) or trained in full (model.modules_to_save), not both.

    Without it: the modules that both keys name get no adapter, without a word; if nothing else is adapted, the training
    ends at its start with an error of peft that names neither key.
    Why: peft leaves modules out of the adapter that it trains and saves as a whole.
    Instead: name each module in one of the keys. all-linear adapts all other linear layers.
    Source: peft 0.21, seen with both keys
    """
    targets = [name for name in (plan.model.lora_targets or "").split(",") if name]
    whole = [name.strip() for name in (plan.model.modules_to_save or "").split(",")]
    both = [name for name in map(str.strip, targets) if name in whole]
    if plan.model.adapter != "none" and both:
        rest = ",".join(name for name in map(str.strip, targets) if name not in whole)
        yield violation(
            "{modules}: named in model.lora_targets and in model.modules_to_save; trained in full, without an adapter",
            remedy("set model.lora_targets to {targets}", {"model.lora_targets": rest}, targets=rest)
            if rest
            else remedy("remove them from model.modules_to_save, or adapt other modules"),
            modules=", ".join(both),
        )


@rule("TW559", level=Level.ERROR, field="model.lora_dora")
def dora_reads_the_weights_itself(plan: Plan, project: Project) -> Violations:
    """DoRA works neither on GPTQ or AWQ weights, nor on 4-bit weights under ZeRO 3 or FSDP.

    Without it: peft stops with `does not support DoRA yet, please set it to False`; or each forward pass expands 4-bit
    weights of which the GPU has only its part, or that ZeRO 3 may have released already.
    Why: DoRA measures each row of a weight with its adapter in every forward pass. It reads the weight itself, beside
    the layer that ZeRO 3 or FSDP2 gathers it for; peft can expand 4 and 8 bits of bitsandbytes for this, but not those
    of GPTQ or AWQ, nor the bytes that the generated four_bits.py packs for FSDP2.
    Instead: set model.lora_dora false; for qlora use single, ddp or ZeRO 0 to 2, which keep whole weights on each GPU.
    Source: read in peft 0.21 (`lora/gptq.py`, `lora/awq.py`, `lora/dora.py`); without 4 bits, ZeRO 3 and FSDP2 were
    compared with one rank (tests/train_templates/test_sft.py)
    """
    if plan.model.adapter == "none" or not plan.model.lora_dora:
        return
    method = project.model.quantized if project.model else ""
    fix = setting("model.lora_dora", False)
    if method in HIDDEN and not plan.model.from_scratch:
        yield violation(
            "model.lora_dora is true, but {name} is quantized by {method}, whose weights DoRA cannot measure",
            fix,
            name=plan.model.name,
            method=method,
        )
    if plan.model.adapter == "qlora" and strategies.of(plan).partitions_weights:
        yield violation(
            "model.lora_dora is true, but {strategy} shards the 4-bit weights whose rows it measures",
            fix,
            strategy=strategies.of(plan).label,
        )


# docs/decisions/tasks.md: Experts are packed as they are read
@rule("TW563", level=Level.HINT, field="model.adapter")
def experts_are_not_quantized(plan: Plan, machine: Machine, project: Project) -> Violations:
    """QLoRA leaves the routed experts of a mixture of experts in 16 bits under ZeRO 3.

    Without it: nothing fails, and the estimates count it. But such a model needs nearly the memory that it needs with
    lora: Qwen3-30B-A3B takes 56 GiB, and not 16.
    Why: transformers 5 keeps the experts of a layer as one tensor, and bitsandbytes quantizes linear layers alone.
    Before 5, each expert was made of linear layers, which were in 4 bits. The generated experts.py packs experts, too,
    but stage 3 gathers only what it sees called as a layer.
    Instead: use ddp or a lower stage if a GPU can hold the 4-bit model, or fsdp, which shards it; or use a dense model.
    Source: seen with transformers 5.23 and bitsandbytes 0.50.2 on Qwen3-MoE, Mixtral and GPT-OSS
    """
    shape = project.model.transformer if project.model else None
    if plan.model.adapter != "qlora" or plan.model.from_scratch or shape is None or not _joins_experts(machine):
        return
    if 2 * shape.joined_weights > shape.parameters and not strategies.of(plan).packs_experts:
        several = plan.machine.num_processes > 1
        yield violation(
            "model.adapter is qlora, but the routed experts of {name} stay in 16 bits: {size} are not quantized",
            setting("strategy.kind", "fsdp" if several else "single"),
            size=quantities.size(2 * shape.joined_weights),
            name=plan.model.name,
        )


@rule("TW564", level=Level.ERROR, field="model.lora_targets")
def adapters_of_experts_are_plain(plan: Plan, machine: Machine, project: Project) -> Violations:
    """Adapters of routed experts have neither dropout nor DoRA.

    Without it: every rank loads the model and stops: `lora.ParamWrapper does not work with lora_dropout != 0.`
    Why: transformers 5 keeps the experts of a layer as one tensor. peft adds the adapter to that tensor, where no input
    can be dropped and no row is measured.
    Instead: set model.lora_dropout to 0 and model.lora_dora to false; or let model.lora_targets name the layers of
    attention alone.
    Source: seen with peft 0.21 and transformers 5.23
    """
    model, shape = plan.model, project.model.transformer if project.model else None
    if model.adapter == "none" or model.from_scratch or shape is None or not _joins_experts(machine):
        return
    if not (shape.exact and shape.joined_features) or left_out(model.lora_targets):
        return
    if model.lora_dropout or model.lora_dora:
        yield violation(
            "{name} has routed experts, whose adapters can have neither dropout nor DoRA",
            remedy(
                "set model.lora_dropout to 0 and model.lora_dora to false",
                {"model.lora_dropout": 0.0, "model.lora_dora": False},
            ),
            name=model.name,
        )


def _joins_experts(machine: Machine) -> bool:
    version = machine.interpreter.packages.get("transformers") if machine.interpreter else None
    return not version or parts(version) >= _JOINS_EXPERTS


@rule("TW535", level=Level.WARNING, field="model.merge_adapter")
def merging_into_four_bits_is_another_model(plan: Plan) -> Violations:
    """A QLoRA adapter should not be merged into unquantized weights.

    Without it: it works, but the merged model uses the adapter with unquantized weights, while training used
    quantized ones: its answers differ slightly from those of the model that was evaluated.
    Why: the adapter has partly learned to compensate for the quantization error.
    Instead: keep the adapter and load it on the 4-bit model, or evaluate the merged model again.
    Source: https://arxiv.org/abs/2305.14314
    """
    if plan.model.adapter == "qlora" and plan.model.merge_adapter:
        fix = setting("model.merge_adapter", False)
        yield violation("model.merge_adapter merges an adapter trained on 4-bit weights into unquantized weights", fix)
