"""Something is missing when it is needed: groups of ranks, an optimizer, tasks, code from the Hub."""

from __future__ import annotations

from trainwiz.diagnose.signature import Signature

TIER = 3
SIGNATURES = {
    "parallel_groups": Signature(
        r"AssertionError: (?P<group>[\w -]*parallel[\w -]*group) is (?:not|ot) initialized",
        cause="Megatron's process groups have not been created here yet: {group}",
        remedy="call initialize_model_parallel after init_process_group, in this process and before anything that asks "
        "for a group; make sure that only one copy of megatron is imported (its groups are globals of the module)",
    ),
    "step_in_no_sync": Signature(
        r"It is illegal to call Engine\.step\(\) inside no_sync",
        cause="DeepSpeed's engine.step() is called inside no_sync, where gradients are not reduced",
        remedy="leave the context before step(); or remove no_sync and let the engine accumulate",
    ),
    "engine_optimizer": Signature(
        r"AssertionError: zero stage (?P<stage>\d) requires an optimizer",
        r"AssertionError: optimizer \(None\)(?P<stage>) not supported",
        cause="DeepSpeed was given no optimizer, but ZeRO {stage} needs one",
        remedy="pass optimizer= to deepspeed.initialize or accelerator.prepare, or add an optimizer block to the JSON; "
        "only for evaluation use stage 0 or 3",
    ),
    "barrier_missed": Signature(
        r"(?P<waits>Rank \d+) successfully reached monitoredBarrier, but received errors",
        r"\[(?P<waits>Rank \d+)\]: Rank[s ][\d, ]+failed to pass monitoredBarrier",
        cause="{waits} waited at a barrier that another rank did not reach",
        remedy="read the logs of the other ranks: one failed earlier, is slower than the timeout, or took another "
        "branch",
        secondary=True,
    ),
    "slurm_tasks": Signature(
        r"You set `--ntasks=(?P<tasks>\d+)` in your SLURM bash script, but this variable is not supported",
        r"number of tasks per node configured in SLURM `--ntasks-per-node=(?P<tasks>\d+)` does not match",
        r"the number of nodes configured in SLURM `--nodes=(?P<tasks>\d+)` does not match",
        cause="Slurm and Lightning's Trainer are set to different numbers of processes ({tasks} in Slurm)",
        remedy="set --ntasks-per-node to Trainer(devices=…) and --nodes to num_nodes; to start without Slurm's "
        "tasks in "
        "an interactive job, run: SLURM_JOB_NAME=bash python train.py",
    ),
    "empty_batch": Signature(
        r"Batch does not contain any data \(`None`\)",
        cause="accelerate's main process had no batch left to send to the ranks: the iterable dataset is shorter than "
        "the loop expects",
        remedy="end the loop when the loader ends; or let every rank read its own data: "
        "DataLoaderConfiguration(dispatch_batches=False)",
    ),
    "dataset_build": Signature(
        r"DatasetGenerationError: An error occurred while generating the dataset",
        cause="the dataset could not be read into Arrow; the exception above this one says why",
        remedy="look at the exception above: usually a line that is not valid JSON, a column whose type changes "
        "from file to file, or a full disk; to find the file, load one after the other",
        secondary=True,
    ),
    "lora_layer": Signature(
        r"Target module (?P<layer>[\w.]+)\([\s\S]{0,2000}? is not supported\. Currently, only",
        cause="LoRA targets a layer of a type that peft cannot adapt: {layer}",
        remedy="use only Linear, Embedding and Conv layers in target_modules (all-linear selects the right ones); "
        "for a quantized model, first install its quantization package",
    ),
}
