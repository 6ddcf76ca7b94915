"""The batch equation, and whether the data and the model can serve it."""

from __future__ import annotations

from trainwiz import batch, tasks
from trainwiz.finding import Fix, Level, Violation, Violations, remedy, setting, violation
from trainwiz.message import say
from trainwiz.plan import Plan
from trainwiz.project import Project
from trainwiz.rules.registry import rule


@rule("TW401", level=Level.ERROR, field="batch.real_batch_size")
def batch_equation_holds(plan: Plan) -> Violations:
    """The real batch must equal micro-batch × accumulation × world size.

    Without it: DeepSpeed stops with `Check batch related parameters. train_batch_size is not equal to …`. Every
    other engine trains with the product instead of the intended real batch, and the learning rate no longer fits.
    Why: engines know only these three factors. The real batch is what the gradient is averaged over.
    Instead: set the real batch and let trainwiz solve for the rest; the message lists the nearest values that work.
    Source: seen with DeepSpeed 0.19.8; deepspeedai/DeepSpeed issues 3982, 6914
    """
    planned = plan.batch
    solved = batch.solve(
        world=plan.machine.num_processes,
        real=planned.real_batch_size,
        micro=planned.per_device_batch_size,
        accumulation=planned.gradient_accumulation_steps,
    )
    if isinstance(solved, batch.Conflict):
        yield Violation(solved.message, _nearest(solved), where=solved.key)


@rule("TW402", level=Level.WARNING, field="batch.real_batch_size")
def data_fills_a_real_batch(plan: Plan, project: Project) -> Violations:
    """The training data must have at least as many samples as the real batch.

    Without it: the generated loop pads with samples that count zero: some ranks compute only padding, and each
    update is a whole epoch. Loaders that drop the last batch train on nothing; others hang because the ranks get
    out of step.
    Why: a real batch is split across all ranks and micro-batches, and there are not enough samples for all of them.
    Instead: use a smaller real batch, fewer ranks, more data, or shorter sequences.
    Source: `RealBatches` in the generated train.py
    """
    if project.train is None:
        return
    exact, real = project.train.samples, plan.batch.real_batch_size
    samples = exact if exact is not None else project.train.samples_at_most
    if samples is not None and 0 < samples < real:
        have = say("{n} samples", n=samples) if exact is not None else say("at most {n} samples", n=samples)
        if tasks.of(plan).generative:
            have = say("{samples} of length {length}", samples=have, length=plan.batch.sequence_length)
        yield violation(
            "a real batch has {real_batch_size} samples over {num_processes} ranks, but the training data has {have}",
            remedy("set batch.real_batch_size to at most {samples}, or use more data", samples=samples),
            have=have,
        )


@rule("TW403", level=Level.ERROR, field="batch.sequence_length")
def sequence_fits_the_model(plan: Plan, project: Project) -> Violations:
    """A sequence must not be longer than the number of positions the model has learned.

    Without it: `IndexError: index out of range in self` on the CPU; on a GPU, `device-side assert triggered`,
    reported at some later line.
    Why: GPT-2 and OPT look up positions in a table of fixed size. Rotary models (Llama, Qwen) compute them instead.
    Instead: use a shorter sequence length, or a rotary model.
    Source: https://huggingface.co/docs/transformers/model_doc/gpt2 (n_positions)
    """
    most = project.model.max_positions if project.model else None
    if most is not None and plan.batch.sequence_length > most:
        yield violation(
            "batch.sequence_length is {sequence_length}, but {model} has {most} positions",
            setting("batch.sequence_length", most),
            model=plan.model.name,
            most=most,
        )


def _nearest(conflict: batch.Conflict) -> Fix | None:
    if not conflict.nearest:
        return None
    nearest = conflict.nearest[0]
    return remedy(
        "set batch.real_batch_size to {real}, batch.per_device_batch_size to {micro}, "
        "batch.gradient_accumulation_steps to {accumulation}",
        {
            "batch.real_batch_size": nearest.real,
            "batch.per_device_batch_size": nearest.micro,
            "batch.gradient_accumulation_steps": nearest.accumulation,
        },
        real=nearest.real,
        micro=nearest.micro,
        accumulation=nearest.accumulation,
    )
