"""Adapters: where they can be trained, with what beneath them, and what becomes of them."""

from __future__ import annotations

from collections.abc import Iterator

from trainwiz import strategies, tasks
from trainwiz.finding import Level, Violation, remedy, violation
from trainwiz.machine import Machine
from trainwiz.plan import Plan
from trainwiz.rules.registry import rule
from trainwiz.rules.versions import install

PACKAGES = {"lora": ("peft>=0.14",), "qlora": ("peft>=0.14", "bitsandbytes>=0.46.1")}


@rule("TW109", level=Level.ERROR, field="model.adapter")
def packages_for_adapters_are_installed(plan: Plan, machine: Machine) -> Iterator[Violation]:
    """Adapters need peft, and a model in 4 bits bitsandbytes.

    Without it: `ModuleNotFoundError: No module named 'peft'` on every rank, or transformers' ImportError that asks for
    bitsandbytes when the model is loaded.
    Why: only plans with an adapter need them, so nothing else brings them along.
    Instead: `pip install -r requirements.txt` in the project, or the line shown.
    Source: seen with transformers 5.23, which asks for bitsandbytes 0.46.1
    """
    interpreter = machine.interpreter
    if interpreter is None:
        return
    wanted = PACKAGES.get(plan.model.adapter, ())
    missing = [p for p in wanted if interpreter.packages.get(p.partition(">")[0], "unknown") is None]
    if missing:
        yield violation(
            "model.adapter is {adapter}, which needs {packages}, not installed in {python}",
            install(interpreter.python, *missing),
            adapter=plan.model.adapter,
            packages=", ".join(missing),
            python=interpreter.python,
        )


@rule("TW531", level=Level.ERROR, field="model.adapter")
def adapters_belong_to_sft(plan: Plan) -> Iterator[Violation]:
    """Adapters are trained by the task sft, on the engine accelerate.

    Without it: the plan's adapter is ignored, and all weights are trained: many times the memory, and another model.
    Why: the generated task.py of the other tasks has no adapter, and Colossal-AI's loop saves whole models.
    Instead: task sft with engine accelerate, or model.adapter none.
    Source: seen in the generated scripts
    """
    if plan.model.adapter != "none" and (not tasks.of(plan).adapters or plan.engine != "accelerate"):
        yield violation(
            "model.adapter is {adapter}; the task {task} on {engine} trains all weights",
            remedy("set model.adapter none, or task sft", {"model.adapter": "none"}),
            adapter=plan.model.adapter,
            task=plan.task,
            engine=plan.engine,
        )


@rule("TW532", level=Level.ERROR, field="model.adapter")
def adapters_need_trained_weights(plan: Plan) -> Iterator[Violation]:
    """An adapter changes a model that was trained before.

    Without it: the generated script makes no adapter and trains all of the random weights. With one, the frozen part
    would be random and stay so, and what is saved would fit a model that nobody has.
    Why: model.from_scratch makes random weights; an adapter only adds matrices of low rank to them.
    Instead: model.from_scratch false with a model that has weights; or model.adapter none.
    Source: seen in the generated scripts; https://arxiv.org/abs/2106.09685
    """
    if tasks.of(plan).adapters and plan.model.adapter != "none" and plan.model.from_scratch:
        yield violation(
            "model.adapter is {adapter}, but {model} starts from random weights, which stay as they are",
            remedy("set model.from_scratch false, or model.adapter none", {"model.adapter": "none"}),
            adapter=plan.model.adapter,
            model=plan.model.name,
        )


@rule("TW533", level=Level.WARNING, field="model.adapter")
def four_bits_need_cuda(plan: Plan) -> Iterator[Violation]:
    """QLoRA runs on CUDA devices.

    Without it: on a CPU it trains, with code that is slower than that for 16 bits, and the 4 bits save host memory
    only. bitsandbytes before 0.43 stops with `No GPU found. A GPU is needed for quantization.`
    Why: the kernels that multiply with weights of 4 bits are written for CUDA.
    Instead: model.adapter lora.
    Source: seen with bitsandbytes 0.50.2 on a CPU; https://huggingface.co/docs/bitsandbytes/main/en/installation
    """
    if plan.model.adapter == "qlora" and plan.machine.device != "cuda":
        yield violation(
            "model.adapter is qlora; machine.device is {device}",
            remedy("set model.adapter lora", {"model.adapter": "lora"}),
            device=plan.machine.device,
        )


@rule("TW534", level=Level.ERROR, field="strategy.kind")
def four_bits_are_not_sharded_by_fsdp(plan: Plan) -> Iterator[Violation]:
    """QLoRA goes with DDP and ZeRO, not with FSDP.

    Without it: it trains, and fails when the adapter is written at the end: `RuntimeError: Attempted to access the data
    pointer on an invalid python storage`.
    Why: a weight of 4 bits is a byte tensor with its quantization state beside it, which FSDP2 does not know of.
    Instead: ddp: half a byte per parameter rarely needs to be cut. ZeRO 3 cuts it, and gave DDP's losses.
    Source: seen with accelerate 1.15, bitsandbytes 0.50.2 and DeepSpeed 0.19.8 on 2 CPU ranks;
    https://huggingface.co/docs/bitsandbytes/main/en/fsdp_qlora
    """
    if plan.model.adapter == "qlora" and strategies.of(plan).uses_fsdp:
        yield violation(
            "model.adapter is qlora, which strategy.kind fsdp cannot write at the end",
            remedy("set strategy.kind ddp, or model.adapter lora", {"strategy.kind": "ddp"}),
        )


@rule("TW535", level=Level.WARNING, field="model.merge_adapter")
def merging_into_four_bits_is_another_model(plan: Plan) -> Iterator[Violation]:
    """An adapter that was trained beside weights of 4 bits fits these.

    Without it: it works. But the merged model has the unquantized weights below the adapter, which saw rounded ones in
    training: its answers differ slightly from those of what was evaluated.
    Why: the error of rounding was part of what the adapter learned to make up for.
    Instead: keep the adapter and load it beside 4 bits, or evaluate the merged model again.
    Source: https://arxiv.org/abs/2305.14314
    """
    if plan.model.adapter == "qlora" and plan.model.merge_adapter:
        yield violation(
            "model.merge_adapter puts an adapter that was trained beside 4 bits into unquantized weights",
            remedy("set model.merge_adapter false", {"model.merge_adapter": False}),
        )
