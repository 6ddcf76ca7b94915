"""Colossal-AI: its package, its Booster's plugins, and what each of them goes with."""

from __future__ import annotations

from trainwiz import strategies
from trainwiz.engines.colossalai import TRIED
from trainwiz.finding import Level, Violations, remedy, setting, violation
from trainwiz.machine import Machine
from trainwiz.plan import Plan
from trainwiz.rules.registry import rule
from trainwiz.rules.versions import install, lacks

_MANY_MICRO_BATCHES = 16


@rule("TW118", level=Level.ERROR, field="engine")
def colossalai_is_installed(plan: Plan, machine: Machine) -> Violations:
    """A Colossal-AI plan needs an interpreter with colossalai installed.

    Without it: every rank fails with `ModuleNotFoundError: No module named 'colossalai'`.
    Why: colossalai pins older versions than other packages need (transformers 4.51.3, torch up to 2.5.1 as
    declared). Install it in its own environment, separate from trainwiz's.
    Instead: select that environment's interpreter with --python. `make colossalai` in trainwiz's repository creates
    one: it installs torch first, then colossalai with --no-deps and the packages that it imports.
    Source: the requirements of colossalai 0.5.0; seen to train on torch 2.13
    """
    if plan.engine == "colossalai" and (python := lacks(machine, "colossalai")):
        yield violation(
            "{kind} needs colossalai, which is not installed in {python}",
            remedy(
                "choose an interpreter that has it: --python PATH (in trainwiz's repository, make colossalai "
                "creates .venv-colossalai/bin/python)"
            ),
            python=python,
        )


@rule("TW119", level=Level.WARNING, field="engine")
def colossalai_has_its_versions(plan: Plan, machine: Machine) -> Violations:
    """Colossal-AI should run with the package versions that it was made for.

    Without it: any behavior may differ. Its model policies replace methods of one specific transformers version; in
    another version these methods may be missing or changed.
    Why: colossalai 0.5.0 requires exactly transformers 4.51.3, and `pip install --no-deps` does not check this.
    Instead: install these versions in a separate environment.
    Source: `Requires-Dist` of colossalai 0.5.0
    """
    interpreter = machine.interpreter
    if plan.engine != "colossalai" or not interpreter or not interpreter.version("colossalai"):
        return
    for package, tried in TRIED.items():
        version = interpreter.version(package)
        if version and version != tried:
            yield violation(
                "{package} is {version}; the Colossal-AI loop was tested with {tried}",
                install(interpreter.python, f"{package}=={tried}"),
                package=package,
                version=version,
                tried=tried,
            )


@rule("TW124", level=Level.WARNING, field="strategy.kind")
def gemini_compiles_its_optimizer(plan: Plan, machine: Machine) -> Violations:
    """Gemini needs nvcc, because it compiles its Adam on first use.

    Without it: `CUDA_HOME environment variable is not set` after the model is built, unless colossalai was
    installed with its kernels (BUILD_EXT=1).
    Why: Gemini updates chunks of memory; the FusedAdam, CPUAdam and HybridAdam that it accepts are all compiled.
    Instead: install the CUDA toolkit for torch's CUDA version, or choose colossal_zero2, which uses torch's AdamW.
    Source: `FusedOptimizerCudaExtension` and `_CudaExtension.assert_compatible` in colossalai 0.5.0
    """
    if strategies.of(plan).compiles_optimizer and machine.inspected and machine.gpus and machine.toolchain.nvcc is None:
        yield violation(
            "gemini compiles FusedAdam on first use, but there is no nvcc",
            remedy(
                "install the CUDA toolkit, or set strategy.kind to colossal_zero2", {"strategy.kind": "colossal_zero2"}
            ),
        )


@rule("TW207", level=Level.ERROR, field="precision.mixed_precision")
def plugin_knows_the_precision(plan: Plan) -> Violations:
    """Each Colossal-AI plugin supports only some precisions.

    Without it: TorchDDP stops with a TypeError for bf16 and fp8; LowLevelZero and Gemini stop with `only supports
    [...] training` and `precision no is not supported`. TorchFSDP accepts fp16 but has no loss scaler: small
    gradients silently become zero.
    Why: Booster lists bf16 and fp8 but does not implement them; Gemini keeps weights in 16 bit; TorchFSDP ignores
    Booster's precision, and its own MixedPrecision casts but does not scale.
    Instead: use fp16 or no with TorchDDP, and bf16 with the other plugins.
    Source: seen with colossalai 0.5.0: `booster/mixed_precision`, `SUPPORTED_PRECISION` of the plugins
    """
    legal = strategies.of(plan).precisions
    if legal and plan.precision.mixed_precision not in legal:
        yield violation(
            "{kind} supports {legal}; precision.mixed_precision is {mixed_precision}",
            setting("precision.mixed_precision", legal[0]),
            legal=", ".join(legal),
        )


@rule("TW309", level=Level.ERROR, field="strategy.kind")
def plugin_runs_on_the_device(plan: Plan) -> Violations:
    """TorchDDP is the only Colossal-AI plugin that trains without a GPU.

    Without it: LowLevelZero stops with `device is required`, Gemini with `No usable kernel found for
    FusedOptimizerLoader`, TorchFSDP with `Torch not compiled with CUDA enabled`; each fails after the model is
    built.
    Why: the other plugins use the device's streams and kernels (cuda; for LowLevelZero and Gemini also npu).
    Instead: try a project on CPU ranks with colossal_ddp, which gives the same losses; use the others on GPUs.
    Source: seen with colossalai 0.5.0 on CPU ranks
    """
    devices = strategies.of(plan).devices
    if devices and plan.machine.device not in devices:
        yield violation(
            "{kind} runs only on {devices}; machine.device is {device}",
            remedy(
                "set strategy.kind to colossal_ddp, or start it on a machine with GPUs",
                {"strategy.kind": "colossal_ddp"} if plan.machine.device == "cpu" else {},
            ),
            devices=", ".join(devices),
        )


@rule("TW310", level=Level.ERROR, field="engine")
def engine_has_the_strategy(plan: Plan) -> Violations:
    """engine must match strategy.kind.

    Without it: the generated training script lacks the part that the strategy fills in, and fails with `NameError:
    name 'boost' is not defined`, or the same error for `build_accelerator`.
    Why: colossal_ddp, colossal_zero1, colossal_zero2, gemini and colossal_fsdp are plugins of Colossal-AI's
    Booster; all other strategies belong to accelerate. trainwiz init sets the engine from the strategy; here, one of
    the two was edited.
    Instead: set engine to the one that the strategy needs, and generate the files again with trainwiz init.
    Source: train_templates/loops/accelerate.py, train_templates/loops/colossalai.py
    """
    needed = strategies.of(plan).engine
    if plan.engine != needed:
        yield violation(
            "engine is {engine}, but strategy.kind {kind} needs {needed}", setting("engine", needed), needed=needed
        )


@rule("TW319", level=Level.ERROR, field="optimizer.name")
def gemini_takes_its_own_adams(plan: Plan) -> Violations:
    """Gemini only works with Adam.

    Without it: `AssertionError: You should use an optimizer in the available list`, after the model is split.
    Why: Gemini passes memory chunks and a gradient scale to the optimizer. Only its own FusedAdam, CPUAdam and
    HybridAdam support these.
    Instead: set optimizer.name to adamw, or use colossal_zero2, which accepts any optimizer.
    Source: `_AVAIL_OPTIM_LIST` in colossalai/zero/gemini/gemini_optimizer.py (0.5.0)
    """
    legal = strategies.of(plan).optimizers
    if legal and plan.optimizer.name not in legal:
        fix = remedy("set optimizer.name to adamw, or strategy.kind to colossal_zero2", {"optimizer.name": "adamw"})
        yield violation("gemini accepts only Adam; optimizer.name is {name}", fix, name=plan.optimizer.name)


@rule("TW326", level=Level.HINT, field="batch.gradient_accumulation_steps")
def gradients_add_up_in_16_bits(plan: Plan) -> Violations:
    """Colossal-AI accumulates gradients in the training precision; in bf16 this loses accuracy.

    Without it: nothing breaks. A bf16 sum keeps only 8 bits, and each further micro-batch is rounded to the sum so
    far: the more micro-batches, the less the last ones count.
    Why: LowLevelZero and Gemini accumulate gradients in the model's data type. DeepSpeed has a setting for this
    (`data_types.grad_accum_dtype`), Colossal-AI does not. TorchDDP and TorchFSDP accumulate in fp32.
    Instead: use larger micro-batches and less accumulation, if they fit.
    Source: `_add_grad` in low_level_optim.py and `add_tensor_to_chunk_slice` in chunk.py (colossalai 0.5.0)
    """
    steps = plan.batch.gradient_accumulation_steps
    half = plan.precision.mixed_precision in ("bf16", "fp16")
    if strategies.of(plan).sums_in_compute_dtype and half and steps >= _MANY_MICRO_BATCHES:
        yield violation(
            "{kind} accumulates the gradients of {gradient_accumulation_steps} micro-batches in {mixed_precision}",
            remedy("use larger micro-batches and less accumulation, if they fit"),
        )


@rule("TW327", level=Level.HINT, field="strategy.kind")
def fsdp1_is_the_older_one(plan: Plan) -> Violations:
    """Colossal-AI's FSDP is FSDP1, the deprecated first version in torch.

    Without it: nothing breaks. FSDP1 is deprecated. Its plugin has no no_sync (every micro-batch communicates) and
    drops parameter names unless told to keep them; the generated loop keeps them.
    Why: TorchFSDPPlugin wraps FullyShardedDataParallel; accelerate's fsdp uses fully_shard (FSDP2).
    Instead: set strategy.kind to fsdp, unless you want to compare the two.
    Source: `TorchFSDPPlugin` in colossalai 0.5.0; https://docs.pytorch.org/docs/stable/fsdp.html
    """
    if strategies.of(plan).superseded_by:
        yield violation(
            "colossal_fsdp is FSDP1, which communicates after each of the {gradient_accumulation_steps} micro-batches",
            remedy(
                "set strategy.kind to fsdp and engine to accelerate", {"strategy.kind": "fsdp", "engine": "accelerate"}
            ),
        )
