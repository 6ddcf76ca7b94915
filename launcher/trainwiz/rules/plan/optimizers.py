"""Which optimizer goes with which strategy and device, and which settings it has."""

from __future__ import annotations

from trainwiz import optimizers, strategies
from trainwiz.finding import Level, Violations, remedy, setting, violation
from trainwiz.machine import Machine
from trainwiz.plan import Plan
from trainwiz.rules.registry import rule
from trainwiz.rules.versions import install, lacks


@rule("TW125", level=Level.ERROR, field="optimizer.name")
def package_of_the_optimizer_is_installed(plan: Plan, machine: Machine) -> Violations:
    """8-bit optimizers need bitsandbytes.

    Without it: every rank fails with `ModuleNotFoundError: No module named 'bitsandbytes'`, after the model is built.
    Why: only plans with such an optimizer need this package, and no other package installs it.
    Instead: run `pip install -r requirements.txt` in the project, or the command that the finding shows.
    Source: the generated optimizers.py
    """
    package = optimizers.named(plan.optimizer.name).package
    if package and machine.interpreter and (python := lacks(machine, package)):
        yield violation(
            "optimizer.name is {name}, which needs {package}; not installed in {python}",
            install(machine.interpreter.python, package),
            name=plan.optimizer.name,
            package=package,
            python=python,
        )


@rule("TW320", level=Level.ERROR, field="optimizer.name")
def optimizer_suits_the_parts(plan: Plan) -> Violations:
    """muon, adafactor and the 8-bit optimizers need whole parameters, not shards.

    Without it: muon stops with `Muon only supports 2D parameters`, adafactor treats a flat part of several matrices as
    one vector, and the blocks of an 8-bit optimizer depend on the number of ranks: the updates differ from those on
    one rank.
    Why: their update of one number depends on the rest of its matrix, row or block. ZeRO gives them
    flat parts of several matrices, FSDP parts of each matrix.
    Instead: use single or ddp, or an optimizer that updates each number by itself: adamw, sgd or lion.
    Source: `Muon.__init__` and `Adafactor` in torch 2.13; ZeRO (https://arxiv.org/abs/1910.02054, section 5)
    """
    strategy = strategies.of(plan)
    if not optimizers.named(plan.optimizer.name).elementwise and not strategy.whole_parameters:
        yield violation(
            "optimizer.name {name} needs whole parameters, but {strategy} shards them",
            remedy("set optimizer.name to adamw, sgd or lion, or strategy.kind to ddp", {"optimizer.name": "adamw"}),
            name=plan.optimizer.name,
            strategy=plan.strategy.label,
        )


@rule("TW339", level=Level.ERROR, field="optimizer.name")
def optimizer_runs_on_the_device(plan: Plan) -> Violations:
    """8-bit optimizers run only on CUDA.

    Without it: the first update fails: the kernels for 8-bit state find no GPU.
    Why: bitsandbytes provides its optimizer kernels for CUDA.
    Instead: use adafactor or lion, which also keep less state than adamw.
    Source: https://huggingface.co/docs/bitsandbytes/main/en/installation (supported features by backend)
    """
    devices = optimizers.named(plan.optimizer.name).devices
    if devices and plan.machine.device not in devices:
        yield violation(
            "optimizer.name {name} runs only on {devices}; machine.device is {device}",
            setting("optimizer.name", "adamw"),
            name=plan.optimizer.name,
            devices=", ".join(devices),
        )


@rule("TW340", level=Level.ERROR, field="optimizer.ema_decay")
def weights_can_be_averaged(plan: Plan) -> Violations:
    """An average of the weights is available under single, ddp and fsdp.

    Without it: no average is kept; the scripts are the same as without it.
    Why: DeepSpeed and Colossal-AI update weights in their own flat buffers, not in the model's parameters.
    Instead: use single, ddp or fsdp, or set optimizer.ema_decay to 0.
    Source: the generated average.py
    """
    if plan.optimizer.ema_decay and not strategies.of(plan).own_parameters:
        yield violation(
            "optimizer.ema_decay is {ema_decay}, but {strategy} does not support an average of the weights",
            setting("optimizer.ema_decay", 0.0),
            strategy=plan.strategy.label,
        )


@rule("TW418", level=Level.WARNING, field="optimizer.name")
def optimizer_uses_its_settings(plan: Plan) -> Violations:
    """The optimizer must have the settings that the plan gives: beta1, beta2, epsilon.

    Without it: the number is ignored, and the training is not what the plan seems to describe.
    Why: sgd has only a momentum (beta1), lion has no epsilon, and adafactor has no betas.
    Instead: leave it empty, or choose an optimizer that has this setting.
    Source: the generated optimizers.py
    """
    row = optimizers.named(plan.optimizer.name)
    for setting_name in ("beta1", "beta2", "epsilon"):
        key = f"optimizer.{setting_name}"
        if plan.get(key) is not None and setting_name not in row.settings:
            yield violation(
                "{key} is {value}, but {name} does not use it",
                remedy("leave {key} empty", {key: None}, key=key),
                key=key,
                value=plan.get(key),
                name=plan.optimizer.name,
                where=key,
            )
