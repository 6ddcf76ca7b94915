"""Data loaders, and what they make of samples."""

from __future__ import annotations

from trainwiz.diagnose.signature import Signature

TIER = 3
SIGNATURES = {
    "loader_settings": Signature(
        r"ValueError: (?P<problem>(?:batch_sampler option is|sampler option is|prefetch_factor option could|"
        r"persistent_workers option needs|DataLoader with IterableDataset: expected|batch_size should be a positive|"
        r"timeout option should|pin_memory_device)[^\n]*)",
        cause="the settings of the DataLoader contradict each other: {problem}",
        remedy="choose samples in one way (shuffle, sampler, or batch_sampler); prefetch_factor and "
        "persistent_workers need workers; an iterable dataset does its own shuffling",
    ),
    "unknown_length": Signature(
        r"train_dataset does not implement __len__, max_steps has to be specified",
        r"max_steps must be set to a positive value if dataloader does not have a length",
        cause="the dataset is a stream without a length, so the number of updates is not known",
        remedy="set schedule.n_steps; a stream has no epochs",
    ),
    "unbatchable": Signature(
        r"RuntimeError: Could not infer dtype of (?P<type>[\w.]+)",
        r"default_collate: batch must contain tensors.*; found <class '(?P<type>[\w.]+)'>",
        r"Unsupported value type (?P<type>[\w.]+) for .* in collat",
        cause="samples contain values of type {type}, which cannot be converted to a tensor",
        remedy="fill in missing values, and convert the rest in the dataset or in collate: images with a transform "
        "(ToTensor), text with the tokenizer; drop columns that are not used",
    ),
    "sampler_epoch": Signature(
        r"AttributeError: '(?P<sampler>\w+)' object has no attribute 'set_epoch'",
        cause="set_epoch is called on a {sampler}, which has none: the loader has no DistributedSampler here",
        remedy="give the loader sampler=DistributedSampler(dataset) where there are several ranks, and call set_epoch "
        "only then: if isinstance(sampler, DistributedSampler)",
    ),
    "gathered_objects": Signature(
        r"Can't apply _?\w+ on object of type <class '(?P<type>[\w.]+)'>",
        r"Unsupported types \(<class '(?P<type>[\w.]+)'>\) passed to `\w+`",
        cause="accelerate was asked to send a {type} between the ranks, but it can send only tensors, in lists and "
        "dictionaries",
        remedy="for objects use gather_object, or gather_for_metrics(…, use_gather_object=True); leave texts out of "
        "what the "
        "model returns",
    ),
}
