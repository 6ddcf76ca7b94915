"""The error messages of the generated train.py."""

from __future__ import annotations

from trainwiz.diagnose.signature import known
from trainwiz.message import say

TIER = 3
SIGNATURES = (
    known(
        "world_mismatch",
        r"planned for (?P<planned>\d+) ranks?, (?:but (?P<found>\d+) found each other|started with (?P<started>\d+))",
        cause=say("planned for {planned} ranks, and {found}{started} started"),
        remedy=say("trainwiz launch starts the planned world; or set machine.num_processes to what you have"),
    ),
    known(
        "needs_launcher",
        r"error: (?P<engine>\S+) needs a launcher: (?P<line>.+)$",
        cause=say("the script was started alone, and {engine} needs a launcher"),
        remedy=say("{line} train.py; or trainwiz launch"),
    ),
    known(
        "batch_equation",
        r"error: (?P<equation>real_batch_size \d+ = .+?) does not hold: the product is (?P<product>\d+)",
        cause=say("the batch does not add up: {equation}, but the product is {product}"),
        remedy=say("leave the batch to the plan, or give all of its parts so that their product is the real batch"),
    ),
    known(
        "nothing_counts",
        r"nothing in the real batch counts; look at collate",
        cause=say("collate counted nothing in a whole real batch, so its loss has nothing to be divided by"),
        remedy=say("look at the count that collate in task.py returns, and for samples without a target"),
    ),
    known(
        "nan_gradient",
        r"the gradient is (?P<value>-?(?:nan|inf))\b",
        cause=say("the loss is a number, but its gradient is not ({value})"),
        remedy=say(
            "look in task.py for sqrt, log, division or norm at 0; torch.autograd.set_detect_anomaly(True) names the "
            "operation; optimizer.learning_rate lower, warm-up longer"
        ),
        plan_change="bf16",
    ),
    known(
        "two_runs",
        r"another training writes into (?P<folder>\S+): --output_dir",
        r"(?<!\S)(?P<folder>\S+) holds an earlier run: --resume auto continues it",
        cause=say("{folder} belongs to another run, whose checkpoints would be mixed with these"),
        remedy=say("--resume auto goes on with it, --output_dir DIR starts elsewhere, as trainwiz launch always does"),
    ),
    known(
        "other_plan",
        r"(?<!\S)(?P<checkpoint>\S+) was trained with (?P<name>\w+) (?P<before>\S+), not (?P<now>\S+): its data order",
        cause=say("{checkpoint} was trained with {name} {before}, and now it is {now}: the data would not go on"),
        remedy=say("set {name} back to {before}, or start anew: trainwiz launch --new"),
    ),
    known(
        "already_trained",
        r"(?P<done>\d+) updates are done already, and the training would end after (?P<total>\d+)",
        cause=say("the checkpoint has {done} updates, and the training would end after {total}"),
        remedy=say("set schedule.n_steps or n_epochs to more than that, or start anew: trainwiz launch --new"),
    ),
    known(
        "other_layout",
        r"(?<!\S)(?P<checkpoint>\S+) was saved as (?P<before>\w+), and cannot be loaded as (?P<now>\w+)",
        cause=say("{checkpoint} was saved by another strategy ({before}) than the one that loads it ({now})"),
        remedy=say("set the strategy back, or take the weights alone: trainwiz export"),
    ),
    known(
        "no_packing",
        r"\b(?P<model>\w+) cannot keep packed documents apart",
        cause=say("{model} would mix the documents that share a row"),
        remedy=say("set data.packing false"),
    ),
    known(
        "lora_targets",
        r"Target modules (?P<modules>\{.*?\}|\S+) not found in the base model",
        cause=say("the model has no layers of the names that LoRA is to adapt: {modules}"),
        remedy=say("set model.lora_targets all-linear, or names that print(model) shows"),
    ),
    known(
        "no_end_token",
        r"the tokenizer of (?P<model>\S+) has no end-of-text token",
        cause=say("the tokenizer of {model} has no token that ends a document"),
        remedy=say("give it one in task.py: tokenizer.eos_token = …; or take another tokenizer"),
    ),
    known(
        "other_classes",
        r"(?<!\S)(?P<source>\S+): (?:no such class in|labels that) \S+?(?: does not have)?: (?P<labels>.+)$",
        cause=say("{source} has classes that the training data does not have: {labels}"),
        remedy=say("name the classes alike in both, or leave those samples out"),
    ),
    known(
        "picture_type",
        r"(?<!\S)(?P<source>\S+): images are (?P<type>\w+), not bytes",
        cause=say("the pictures in {source} are {type}, and bytes from 0 to 255 are needed"),
        remedy=say("save them as uint8: numpy.round(255 * images).astype('uint8') where they go from 0 to 1"),
    ),
    known(
        "not_saved",
        r"(?P<why>update \d+ was not saved: .+?)(?:; (?:no checkpoint|the newest)|$)",
        r"rank \d+: the checkpoint was not saved: (?P<why>.+)$",
        cause=say("a checkpoint could not be written: {why}"),
        remedy=say("look at the disk under runs/ (df -h, mount, ls -ld); earlier checkpoints are as they were"),
        transient=None,
    ),
)
