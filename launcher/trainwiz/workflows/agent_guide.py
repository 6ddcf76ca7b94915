"""`trainwiz agent-guide`: a page for programs that type the commands. It is English in every language."""

from __future__ import annotations

from trainwiz.errors import UsageError
from trainwiz.outcome import HANG_CODE, STOPPED_CODE
from trainwiz.ui import console

GUIDE = f"""\
# trainwiz, for coding agents

Nothing waits for input without a terminal: what would be asked is an error that names the keys. Data goes to stdout,
everything else to stderr. With `--json`, stdout is one JSON value. Set TRAINWIZ_LANG=en for English messages.

## From a model and data to a checked project

    trainwiz doctor --json > machine.json       what this machine is, and what is missing
    trainwiz recipes --json                     models, methods and GPUs that fit: init --recipe NAME
    trainwiz plan --model NAME --task sft --gpus 8xH100 --json     what fits, how fast, what it costs
    trainwiz init DIR --defaults --yes --task sft --model NAME --data talks.jsonl
    trainwiz init DIR --defaults --yes --set KEY=VALUE --machine machine.json     any key; for another machine,
                                                by its doctor's output or its GPUs: 8xH100
    trainwiz import accelerate.yaml ds_config.json --into DIR --yes     from files of other tools
    trainwiz adopt train.py --into DIR --yes    from a training script; it is read, never run
    trainwiz check DIR --json                   findings: rule, level, where, message, fix; errors and warnings counted
    trainwiz explain RULE                       the manual of a rule, or of a key of the plan; keys: all of them
    trainwiz lint train.py --json               what goes wrong on several ranks in a script of your own

`DIR/trainwiz.yaml` is the plan, and the only file to edit for a setting. Then:

    trainwiz update DIR --set KEY=VALUE         sets a value, and renews the other files; edits of them are merged
    trainwiz update DIR                         the same after an edit of trainwiz.yaml
    trainwiz check DIR --fix --yes              applies what is safe; never --unsafe-fixes without being told to

Model, data and loss of a project with `task: custom` are functions in `DIR/task.py`.

## Train

    trainwiz rehearse DIR --json                a small version on this CPU: killed, resumed, compared
    trainwiz launch DIR --dry-run --json        what would be started
    trainwiz launch DIR                         until it ends; DIR/runs/ID holds everything
    trainwiz launch DIR --resume                goes on from the newest complete checkpoint
    trainwiz stop DIR                           asks a run to save a checkpoint and stop
    trainwiz submit DIR                         to Slurm, Kubernetes or a cloud, where the plan has a cluster

Arguments behind `--` go to train.py: `trainwiz launch DIR -- --n_steps 10`.

## Read a run

    trainwiz runs DIR --json                    state, updates, loss, forecast and measured memory, why it ended
    trainwiz logs DIR --rank 1                  the log of a rank of the newest run
    trainwiz diagnose DIR --json                cause, how certain, rank, evidence, remedy; null: it did not fail;
                                                also for any log file
    trainwiz checkpoints DIR --json             which are complete
    trainwiz watch DIR --json                   a run now: updates, loss, time left, memory by rank
    trainwiz diff RUN RUN --json                what changed between two runs: plan, code, machine, result
    trainwiz export DIR --json                  weights for from_pretrained: what was written
    trainwiz sample DIR "PROMPT" --json         what the model makes of it

`DIR/runs/ID/metrics.jsonl` has one JSON object per logged update, `outcome.json` how it ended, `command.json` what was
started with which versions.

## Exit codes

    0     done; nothing of level error was found
    1     findings of level error, or a training that failed with 1; other codes of a rank are passed on
    {UsageError.exit_code}     the command line, a file or the plan cannot be used; stderr says what to type
    3     a bug in trainwiz; stderr names the file that describes it
    {STOPPED_CODE}    the training was asked to stop, saved, and can go on with --resume
    {HANG_CODE}   a hang was ended (launch --on-hang stop)
    128+N ended by signal N; 130: Ctrl-C before there was anything to save

## Rules that save a day

- A real batch is micro-batch × accumulation × ranks. Change `batch.real_batch_size`; the rest is solved for.
- Everything is counted in updates, not in micro-batches.
- Do not edit `accelerate.yaml`, `ds_config.json` or `train.py` for a setting: change the plan, then `trainwiz update`.
- Do not silence a rule before you read `trainwiz explain RULE`; `ignore:` in the plan is for reasons people gave you.
"""


def show() -> None:
    """Print the guide."""
    console.data(GUIDE.rstrip())
