"""Colossal-AI: its package, its Booster's plugins, and what each of them goes with."""

from __future__ import annotations

from collections.abc import Iterator

from trainwiz import strategies
from trainwiz.engines.colossalai import TRIED
from trainwiz.finding import Level, Violation, remedy, violation
from trainwiz.machine import Machine
from trainwiz.plan import Plan
from trainwiz.rules.registry import rule
from trainwiz.rules.versions import install

_MANY_MICRO_BATCHES = 16


@rule("TW118", level=Level.ERROR, field="engine")
def colossalai_is_installed(plan: Plan, machine: Machine) -> Iterator[Violation]:
    """A plan for Colossal-AI needs an interpreter that has it.

    Without it: `ModuleNotFoundError: No module named 'colossalai'` on every rank.
    Why: it pins packages that are older than others need (transformers 4.51.3, torch up to 2.5.1 by its declaration),
    so it lives in an environment of its own, beside trainwiz's.
    Instead: name that environment's interpreter with --python. `make colossalai` in trainwiz's repository makes one:
    torch first, then colossalai with --no-deps beside the packages that it imports.
    Source: the requirements of colossalai 0.5.0; seen to train on torch 2.13
    """
    interpreter = machine.interpreter
    if plan.engine == "colossalai" and interpreter and interpreter.packages.get("colossalai", "unknown") is None:
        yield violation(
            "{kind} needs colossalai, which is not installed in {python}",
            remedy(
                "name an interpreter that has it: --python PATH "
                "(make colossalai, in trainwiz's repository, makes .venv-colossalai/bin/python)"
            ),
            kind=plan.strategy.kind,
            python=interpreter.python,
        )


@rule("TW119", level=Level.WARNING, field="engine")
def colossalai_has_its_versions(plan: Plan, machine: Machine) -> Iterator[Violation]:
    """Colossal-AI runs with the versions that it was made for.

    Without it: anything may differ. Its model policies replace methods of one version of transformers; of another one
    they replace what is not there, or what has changed.
    Why: colossalai 0.5.0 declares exactly transformers 4.51.3, and `pip install --no-deps` does not look.
    Instead: install these versions, in an environment of their own.
    Source: `Requires-Dist` of colossalai 0.5.0
    """
    interpreter = machine.interpreter
    if plan.engine != "colossalai" or not interpreter or not interpreter.version("colossalai"):
        return
    for package, tried in TRIED.items():
        version = interpreter.version(package)
        if version and version != tried:
            yield violation(
                "{package} is {version}; the loop for Colossal-AI was tried with {tried}",
                install(interpreter.python, f"{package}=={tried}"),
                package=package,
                version=version,
                tried=tried,
            )


@rule("TW124", level=Level.WARNING, field="strategy.kind")
def gemini_compiles_its_optimizer(plan: Plan, machine: Machine) -> Iterator[Violation]:
    """Gemini compiles its Adam with nvcc when it is first used.

    Without it: `CUDA_HOME environment variable is not set` after the model is built, unless colossalai was installed
    with its kernels (BUILD_EXT=1).
    Why: Gemini updates chunks of memory and takes FusedAdam, CPUAdam and HybridAdam only; each is an extension.
    Instead: install the CUDA toolkit of torch's CUDA version, or choose colossal_zero2, which takes torch's AdamW.
    Source: `FusedOptimizerCudaExtension` and `_CudaExtension.assert_compatible` in colossalai 0.5.0
    """
    if strategies.of(plan).compiles_optimizer and machine.probed and machine.gpus and machine.toolchain.nvcc is None:
        yield violation(
            "gemini compiles FusedAdam when it is first used, and there is no nvcc",
            remedy(
                "install the CUDA toolkit, or set strategy.kind colossal_zero2", {"strategy.kind": "colossal_zero2"}
            ),
        )


@rule("TW207", level=Level.ERROR, field="precision.mixed_precision")
def plugin_knows_the_precision(plan: Plan) -> Iterator[Violation]:
    """Each plugin of Colossal-AI computes in some precisions only.

    Without it: TorchDDP stops with a TypeError for bf16 and fp8, LowLevelZero and Gemini with `only supports [...]
    training` and `precision no is not supported`. TorchFSDP would take fp16 and has no loss scaler: small gradients
    become zero, and nothing says so.
    Why: Booster's bf16 and fp8 are named, but not written; Gemini keeps weights in 16 bit; TorchFSDP ignores Booster's
    precision, its MixedPrecision casts and does not scale.
    Instead: fp16 or no with TorchDDP, bf16 with the others.
    Source: seen with colossalai 0.5.0: `booster/mixed_precision`, `SUPPORTED_PRECISION` of the plugins
    """
    legal = strategies.of(plan).precisions
    if legal and plan.precision.mixed_precision not in legal:
        yield violation(
            "{kind} computes in {legal}; precision.mixed_precision is {precision}",
            remedy("set precision.mixed_precision {best}", {"precision.mixed_precision": legal[0]}, best=legal[0]),
            kind=plan.strategy.kind,
            legal=", ".join(legal),
            precision=plan.precision.mixed_precision,
        )


@rule("TW309", level=Level.ERROR, field="strategy.kind")
def plugin_runs_on_the_device(plan: Plan) -> Iterator[Violation]:
    """Of Colossal-AI's plugins only TorchDDP trains without a GPU.

    Without it: LowLevelZero stops with `device is required`, Gemini with `No usable kernel found for
    FusedOptimizerLoader`, TorchFSDP with `Torch not compiled with CUDA enabled`; each after the model is built.
    Why: they work with streams, memory and kernels of the device (cuda, or npu for LowLevelZero and Gemini).
    Instead: colossal_ddp to try a project on CPU ranks: it gives the same curve. The others where GPUs are.
    Source: seen with colossalai 0.5.0 on CPU ranks
    """
    devices = strategies.of(plan).devices
    if devices and plan.machine.device not in devices:
        yield violation(
            "{kind} runs on {devices}; machine.device is {device}",
            remedy(
                "set strategy.kind colossal_ddp, or start it where GPUs are",
                {"strategy.kind": "colossal_ddp"} if plan.machine.device == "cpu" else {},
            ),
            kind=plan.strategy.kind,
            devices=", ".join(devices),
            device=plan.machine.device,
        )


@rule("TW310", level=Level.ERROR, field="engine")
def engine_has_the_strategy(plan: Plan) -> Iterator[Violation]:
    """The engine is the one that has the strategy.

    Without it: the training script is written for the engine, without the part that the strategy would have filled:
    `NameError: name 'boost' is not defined`, or `build_accelerator`.
    Why: colossal_ddp, colossal_zero1, colossal_zero2, gemini and colossal_fsdp are plugins of Colossal-AI's Booster;
    all others are accelerate's. trainwiz init decides the engine by the strategy; here one of them was edited.
    Instead: set engine as the strategy needs it, and write the files anew with trainwiz init.
    Source: train_templates/loops/accelerate.py, train_templates/loops/colossalai.py
    """
    needed = strategies.of(plan).engine
    if plan.engine != needed:
        yield violation(
            "engine is {engine}, but strategy.kind {kind} needs {needed}",
            remedy("set engine {needed}", {"engine": needed}, needed=needed),
            engine=plan.engine,
            kind=plan.strategy.kind,
            needed=needed,
        )


@rule("TW319", level=Level.ERROR, field="optimizer.name")
def gemini_takes_its_own_adams(plan: Plan) -> Iterator[Violation]:
    """Gemini goes with Adam only.

    Without it: `AssertionError: You should use an optimizer in the available list`, once the model is cut into chunks.
    Why: it gives the optimizer chunks of memory with a scale to divide by, which only its FusedAdam, CPUAdam and
    HybridAdam understand.
    Instead: optimizer.name adamw, or colossal_zero2, which takes any optimizer.
    Source: `_AVAIL_OPTIM_LIST` in colossalai/zero/gemini/gemini_optimizer.py (0.5.0)
    """
    legal = strategies.of(plan).optimizers
    if legal and plan.optimizer.name not in legal:
        yield violation(
            "gemini takes Adam only; optimizer.name is {name}",
            remedy("set optimizer.name adamw, or strategy.kind colossal_zero2", {"optimizer.name": "adamw"}),
            name=plan.optimizer.name,
        )


@rule("TW326", level=Level.HINT, field="batch.gradient_accumulation_steps")
def gradients_add_up_in_16_bits(plan: Plan) -> Iterator[Violation]:
    """Colossal-AI adds up the gradients of micro-batches in the precision that it computes in.

    Without it: nothing breaks. In bf16 a sum keeps 8 bits, so each further micro-batch is rounded to what is there: the
    more of them, the less the last ones count.
    Why: LowLevelZero and Gemini accumulate in gradients of the model's type; DeepSpeed has a setting for it
    (`data_types.grad_accum_dtype`), Colossal-AI has none. TorchDDP and TorchFSDP add up in fp32.
    Instead: larger micro-batches and less accumulation, if they fit.
    Source: `_add_grad` in low_level_optim.py and `add_tensor_to_chunk_slice` in chunk.py (colossalai 0.5.0)
    """
    steps = plan.batch.gradient_accumulation_steps
    half = plan.precision.mixed_precision in ("bf16", "fp16")
    if strategies.of(plan).sums_in_compute_dtype and half and steps >= _MANY_MICRO_BATCHES:
        yield violation(
            "{kind} adds up the gradients of {steps} micro-batches in {precision}",
            remedy("take larger micro-batches and less accumulation, if they fit"),
            kind=plan.strategy.kind,
            steps=steps,
            precision=plan.precision.mixed_precision,
        )


@rule("TW327", level=Level.HINT, field="strategy.kind")
def fsdp1_is_the_older_one(plan: Plan) -> Iterator[Violation]:
    """Colossal-AI's FSDP is torch's first one.

    Without it: nothing breaks. FSDP1 is deprecated, its plugin knows no no_sync (every micro-batch communicates), and
    keeps no names of parameters unless told to; the generated loop tells it.
    Why: TorchFSDPPlugin wraps FullyShardedDataParallel; accelerate's fsdp is fully_shard (FSDP2).
    Instead: strategy.kind fsdp, unless the comparison is what you are after.
    Source: `TorchFSDPPlugin` in colossalai 0.5.0; https://docs.pytorch.org/docs/stable/fsdp.html
    """
    if strategies.of(plan).superseded_by:
        yield violation(
            "colossal_fsdp is FSDP1, and communicates after each of {steps} micro-batches",
            remedy("set strategy.kind fsdp, with engine accelerate", {"strategy.kind": "fsdp", "engine": "accelerate"}),
            steps=plan.batch.gradient_accumulation_steps,
        )
