"""The error messages of the generated train.py."""

from __future__ import annotations

from trainwiz.diagnose.signature import Signature

TIER = 3
SIGNATURES = {
    "world_mismatch": Signature(
        r"planned for (?P<planned>\d+) ranks?, "
        r"(?:but (?P<found>\d+) (?:are running|found each other)|started with (?P<started>\d+))",
        cause="planned for {planned} ranks, but {found}{started} started",
        remedy="run trainwiz launch, which starts the planned number of ranks; or set machine.num_processes to the "
        "ranks you have",
    ),
    "needs_launcher": Signature(
        r"error: (?P<engine>\S+) needs a launcher: (?P<line>.+)$",
        cause="the script was started without a launcher, but {engine} needs one",
        remedy="run: {line} train.py; or trainwiz launch",
    ),
    "batch_equation": Signature(
        r"error: (?P<equation>real_batch_size \d+ = .+?) does not hold: the product is (?P<product>\d+)",
        cause="the batch equation does not hold: {equation}, but the product is {product}",
        remedy="let the plan set the batch, or set all of its factors; their product must be the real batch",
    ),
    "nothing_counts": Signature(
        r"nothing in the real batch counts; look at collate",
        cause="collate counted zero items in a whole real batch; the loss cannot be divided by zero",
        remedy="check the count that collate in task.py returns, and look for samples without a target",
    ),
    "nothing_to_learn": Signature(
        r"the loss is 0, so there is nothing to learn: are all labels alike",
        cause="the loss is 0 from the first update, so there is nothing to learn",
        remedy="check the labels: are all of them the same, or are all of them ignored? Then check loss_sum in task.py",
    ),
    "refused_hook": Signature(
        r"task\.py has \w+, which this project cannot use: (?P<why>.+)$",
        r"build_optimizers returns (?P<why>several optimizers \(.+\); they need the strategies single or ddp)",
        r"(?P<why>several optimizers do not share fp16's loss scaler)",
        r"task\.py has build_optimizers and parameter_groups: (?P<why>the first one makes the groups itself)",
        cause="task.py has a function that does not work with this plan: {why}",
        remedy="choose another strategy or precision, such as strategy.kind ddp, or remove the function; hooks.py says "
        "what each does",
    ),
    "parts_of_optimizers": Signature(
        r"parameters without an optimizer: (?P<what>.+); give them one",
        r"two optimizers have the same parameter: (?P<what>\S+)",
        cause="the optimizers in task.py do not contain each parameter of the model exactly once: {what}",
        remedy="give each parameter to one group or optimizer, and set requires_grad to False for those that are not "
        "trained",
    ),
    "rows_of_outputs": Signature(
        r"evaluation_outputs: (?P<name>.+) has (?P<rows>\d+) rows for \d+ of (?P<size>\d+) samples",
        cause="evaluation_outputs returned {rows} rows of {name} for a micro-batch of {size} samples",
        remedy="return one row for each sample, in the order of the micro-batch",
    ),
    "length_of_stream": Signature(
        r"the stream (?P<what>(?:ended|goes on) after \d+ samples.*)$",
        r"(?<!\w)(?P<what>\w+ is a stream without a length)",
        r"(?<!\w)(?P<what>\w[^,]*, which is no data: it needs __len__ and __getitem__, or __iter__)",
        cause="the data does not have the length that it reports or needs: {what}",
        remedy="make its __len__ return the samples of one epoch, or repeat the stream and set schedule.n_steps",
    ),
    "unusable_function": Signature(
        r"(?<!\S)(?P<what>\S+ in task\.py (?:returns|sets|is called with|is not a function|must return|counts) .+)$",
        r"(?<!\S)(?P<what>task\.py has (?:no \w+|evaluation_outputs without metrics).*)$",
        r"(?<!\S)(?P<what>\S+: return (?:its dataset; the project|samples, each with an index).+)$",
        r"(?<!\S)(?P<what>\S+ \(.+\): return one of its parts)$",
        r"(?<!\S)(?P<what>\S+ without a length: give it __len__, or make it an IterableDataset)",
        cause="a function in task.py is not what the loop needs: {what}",
        remedy="change that function; its docstring and hooks.py say what it is given and what it must return",
    ),
    "changing_evaluation": Signature(
        r"an evaluation changed the model \((?P<name>[^)]+)\)",
        cause="the evaluation changed {name} of the model",
        remedy="in evaluation_sums, evaluation_outputs and metrics of task.py, leave out model.train(), backward() and "
        "changes of weights",
    ),
    "uneven_data": Signature(
        r"on each rank: (?P<each>\d[\d, ]*); all ranks must have the same",
        cause="the ranks have different numbers of samples: {each}",
        remedy="give every rank all of the data, which the project then divides; on several machines, use the same "
        "files",
    ),
    "unused_adapter": Signature(
        r"an adapter of (?P<names>.+?) would not be trained, since",
        cause="model.lora_targets names {names}, and the model does not use an adapter there",
        remedy="leave it out of model.lora_targets",
    ),
    "nan_gradient": Signature(
        r"the gradient is (?P<value>-?(?:nan|inf))\b",
        cause="the loss is finite, but its gradient is not ({value})",
        remedy="in task.py, look for sqrt, log, division or norm at 0; to find the operation, use "
        "torch.autograd.set_detect_anomaly(True); lower optimizer.learning_rate, or use a longer warm-up",
        plan_change="bf16",
    ),
    "two_runs": Signature(
        r"another training writes into (?P<folder>\S+): --output_dir",
        r"(?<!\S)(?P<folder>\S+) holds an earlier run: --resume auto continues it",
        cause="{folder} belongs to another run; the checkpoints of both would be mixed",
        remedy="to continue that run, use --resume auto; to start elsewhere, use --output_dir DIR; trainwiz launch "
        "always starts in a new folder",
    ),
    "other_plan": Signature(
        r"(?<!\S)(?P<checkpoint>\S+) was trained with (?P<name>\w+) (?P<before>\S+), not (?P<now>\S+): its data order",
        cause="{checkpoint} was trained with {name} {before}, but the value is now {now}: the data order would not "
        "continue",
        remedy="set {name} back to {before}, or start a new run: trainwiz launch --new",
    ),
    "classes_changed": Signature(
        r"(?<!\S)(?P<checkpoint>\S+) has learned other classes: (?P<why>.+); --output_dir",
        cause="{checkpoint} was trained on other classes: {why}",
        remedy="train on the data whose classes it learned, or start a new run: trainwiz launch --new",
    ),
    "already_trained": Signature(
        r"(?<!\d)(?P<done>\d{1,12}) updates are already done, but the training ends after (?P<total>\d+)",
        cause="the checkpoint has {done} updates, but the training ends after {total}",
        remedy="set schedule.n_steps or n_epochs to a higher value, or start a new run: trainwiz launch --new",
    ),
    "unmatched_parameters": Signature(
        r"(?<!\w)(?P<field>\w+): (?P<pattern>\S+) matches no trained parameter; some of them are (?P<some>.+)",
        cause="optimizer.{field} contains {pattern}, which matches no trained parameter ({some})",
        remedy="correct optimizer.{field}, or leave it empty",
    ),
    "unmatched_frozen": Signature(
        r"\bfrozen: (?P<pattern>\S+) matches no parameter; some of them are (?P<some>.+)",
        cause="model.frozen contains {pattern}, which matches no parameter name ({some})",
        remedy="correct model.frozen, or leave it empty",
    ),
    "nothing_to_train": Signature(
        r"\bfrozen: (?P<patterns>\S+) leaves nothing to train",
        cause="model.frozen ({patterns}) freezes every parameter",
        remedy="name fewer parameters in model.frozen",
    ),
    "muon_without_matrices": Signature(
        r"muon: (?P<model>\w+) has no linear layers inside",
        cause="muon updates the linear layers inside a model, but {model} has none",
        remedy="set optimizer.name to adamw",
    ),
    "unknown_metric": Signature(
        r"best_metric (?P<name>\w+) is not among the metrics of the evaluation: (?P<known>[\w, ]+)",
        cause="evaluation.best_metric is {name}, but the evaluation measures {known}",
        remedy="set evaluation.best_metric to one of these, or return {name} from evaluation_metrics in task.py",
    ),
    "other_layout": Signature(
        r"(?<!\S)(?P<checkpoint>\S+) was saved as (?P<before>\w+), and cannot be loaded as (?P<now>\w+)",
        cause="{checkpoint} was saved with a different strategy ({before}) than the current one ({now})",
        remedy="set the strategy back, or keep only the weights: trainwiz export",
    ),
    "planted_checkpoint": Signature(
        r"(?<!\S)(?P<path>\S+) holds (?P<name>\S+), which is not part of a checkpoint and could run any code",
        cause="{path} contains {name}, which is not part of a checkpoint and could run any code",
        remedy="do not resume from a checkpoint of somebody you do not trust; if you trust them, pass this to the "
        "script: trainwiz launch --resume -- --trust true",
    ),
    "swollen_checkpoint": Signature(
        r"(?<!\S)(?P<path>\S+) is not as a training writes it \((?P<what>.+?)\) and could fill the memory",
        cause="{path} does not look like a file written by training ({what}) and could fill the memory",
        remedy="do not resume from a checkpoint of somebody you do not trust; if you trust them, pass this to the "
        "script: trainwiz launch --resume -- --trust true",
    ),
    "no_packing": Signature(
        r"\b(?P<model>\w+) cannot keep packed documents apart",
        cause="{model} would mix documents that share a row",
        remedy="set data.packing to false",
    ),
    "sees_ahead": Signature(
        r"\b(?P<model>\w+) sees the tokens that it would learn to predict",
        cause="{model} reads text in both directions, so it would copy the tokens that it should predict",
        remedy='choose a model that generates text, such as Qwen/Qwen3-0.6B, or set "is_decoder": true in the '
        "config.json of a local copy of the model",
    ),
    "no_such_head": Signature(
        r"configuration class <class '[\w.]*?(?P<shape>\w+)'> for this kind of AutoModel: AutoModel(?P<head>For\w+)",
        cause="transformers has no {head} class for models with a {shape}",
        remedy="choose a model for this task: causal_lm, sft and preference need one that generates text, such as "
        "Qwen/Qwen3-0.6B",
    ),
    "lost_encoder": Signature(
        r"\b(?P<model>\w+) leaves out the encoder of its model",
        cause="{model} is only the decoder of a model that also has an encoder, and the encoder would be dropped",
        remedy="choose a decoder-only model, such as Qwen/Qwen3-0.6B",
    ),
    "lora_targets": Signature(
        r"Target modules (?P<modules>\{.*?\}|\[.*?\]|\S+) not found in the base model",
        r"Please specify (?P<modules>`?target_modules`?) in `?peft_config",
        cause="the model has no layers with the names that LoRA should adapt: {modules}",
        remedy="set model.lora_targets to all-linear, or to names that print(model) shows",
    ),
    "no_reward_model": Signature(
        r"\b(?P<model>\w+) cannot be a reward model",
        cause="{model} does not read text in one direction only, and a reward model scores the last token of an answer",
        remedy="choose a language model, such as Qwen/Qwen3-0.6B, or train on the texts with text_regression",
    ),
    "no_such_module": Signature(
        r"no module of this name to train (?:in full|as a whole): (?P<names>[\w., ]+)",
        cause="the model has no modules with the names in model.modules_to_save: {names}",
        remedy="set model.modules_to_save to names that print(model) shows, such as embed_tokens,lm_head",
    ),
    "lacks_weights": Signature(
        r"(?<!\S)(?P<model>\S+): it has no (?P<names>[\w., ]+), which would stay random and (?:not|be) ",
        cause="{model} has no weights for {names}; with an adapter they stay random and are not saved",
        remedy="name their module in model.modules_to_save, such as pooler for pooler.dense.weight, or train without "
        "an adapter",
    ),
    "rows_of_zeros": Signature(
        r"(?<!\S)(?P<model>\S+): DoRA divides by the length of each row, and (?P<n>\d+) layers have rows of zeros "
        r"\((?P<layer>\S+): \d+\)",
        cause="{model} has rows of zeros in {n} layers ({layer} and others), and DoRA would divide by their length",
        remedy="set model.lora_dora to false, or model.lora_targets to layers without such rows, like q_proj,v_proj",
    ),
    "half_of_tied": Signature(
        r"(?<!\S)(?P<model>\S+): its embeddings are its head, and modules_to_save names one of both",
        cause="{model} ties its embeddings to its head, but model.modules_to_save names only one of them",
        remedy="name both in model.modules_to_save, such as embed_tokens,lm_head, or leave it empty",
    ),
    "uneven_shards": Signature(
        r"(?<!\S)(?P<name>\S+) is (?:not sharded by rows|cut in another way than by rows): (?P<how>.+)",
        r"(?<!\S)(?P<name>\S+): read .+ for a shard of (?P<how>.+)",
        cause="FSDP2 shards {name} differently ({how}) than sharding.py reads it from the model's files",
        remedy="let rank 0 load the weights: return {{}} at the beginning of found_in in sharding.py",
    ),
    "untrained_tokens": Signature(
        r"(?<!\S)(?P<model>\S{1,300}): (?P<tokens>.{1,300}) would not be learned, because the embeddings or the head "
        r"are frozen: set modules_to_save to (?P<names>\S+)",
        cause="the plan adds the tokens {tokens} to the tokenizer of {model}, but the adapter leaves the embeddings "
        "or the head frozen",
        remedy="set model.modules_to_save to {names}, or leave data.special_tokens and data.added_tokens empty",
    ),
    "renamed_first_token": Signature(
        r"(?<!\S)(?P<model>\S+): bos_token cannot be (?P<token>\S+): its tokenizer puts (?P<first>\S+) before each",
        cause="the tokenizer of {model} puts {first} before each text, but bos_token should be {token}",
        remedy="remove bos_token from data.special_tokens, or change the post_processor in tokenizer.json",
    ),
    "no_end_token": Signature(
        r"the tokenizer of (?P<model>\S+) has no end-of-text token",
        cause="the tokenizer of {model} has no end-of-text token",
        remedy="set one in task.py: tokenizer.eos_token = …; or use another tokenizer",
    ),
    "no_room_to_write": Signature(
        r"no prompt leaves room for max_new_tokens (?P<tokens>\d+): \d+ are longer, and the model has (?P<places>\d+)",
        cause="prompts and {tokens} further tokens are longer than the {places} positions of the model",
        remedy="set evaluation.max_new_tokens lower, or leave evaluation.generation_metrics empty",
    ),
    "no_tokenizer": Signature(
        r"(?<!\S)(?P<model>\S+): (?:no tokenizer, or an empty one|cannot load its tokenizer)",
        cause="{model} has no usable tokenizer",
        remedy="copy tokenizer.json and tokenizer_config.json from the model that it was trained from",
    ),
    "slow_tokenizer": Signature(
        r"the tokenizer of (?P<model>\S+) does not tell where tokens begin",
        cause="the tokenizer of {model} does not report where tokens begin",
        remedy="save it with a tokenizer.json: AutoTokenizer.from_pretrained(…, use_fast=True).save_pretrained(…)",
    ),
    "quantized_already": Signature(
        r"(?<!\S)(?P<model>\S+) is quantized already, by [^;\n]+; FSDP2 needs its weights in 16 bits",
        r"(?<!\S)(?P<model>\S+): the model has no layers for \d+ weights in 4 bits",
        r"(?<!\S)(?P<model>\S+): its 4 bits are not those that FSDP2 shards",
        cause="the files of {model} hold quantized weights, which FSDP2 cannot shard",
        remedy="set model.name to the same model in 16 bits, which is quantized while it is loaded; or, if each GPU "
        "can hold all of it, set strategy.kind to ddp",
    ),
    "mixed_shards": Signature(
        r"torch (?P<version>\S+): FSDP2 shards 4-bit weights beside an adapter in fp32 from \S+ on",
        cause="torch {version} cannot shard 4-bit weights beside an adapter in fp32",
        remedy="pip install --upgrade 'torch>=2.9'",
    ),
    "no_layer_to_recompute": Signature(
        r"no layer to recompute; name the class of the repeated layers",
        cause="activation checkpointing found no repeated layers",
        remedy="name their class in SHARDED_LAYERS of task.py, or set model.activation_checkpointing to none",
    ),
    "nothing_in_fp8": Signature(
        r"fp8: none of the model's (?P<count>[0-9]+) linear layers can be trained in fp8",
        cause="none of the {count} linear layers in the model's repeated layers can run in fp8: their weights are "
        "frozen, their widths are not multiples of 16, or they are of another kind, as in GPT-2",
        remedy="set precision.mixed_precision to bf16",
    ),
    "batch_norm_recomputed": Signature(
        r"BatchNorm would count each batch twice in layers that are computed again",
        cause="BatchNorm would count each batch twice in recomputed layers",
        remedy="use GroupNorm in task.py, or set model.activation_checkpointing to none",
    ),
    "other_classes": Signature(
        r"(?<!\S)(?P<source>\S+): (?:no such class in|labels that) \S+?(?: does not have)?: (?P<labels>.+)$",
        cause="{source} has classes that are not in the training data: {labels}",
        remedy="use the same class names in both, or remove those samples",
    ),
    "picture_type": Signature(
        r"(?<!\S)(?P<source>\S+): images are (?P<type>\w+), not bytes",
        cause="the images in {source} are {type}; bytes from 0 to 255 are required",
        remedy="save them as uint8; for values from 0 to 1: numpy.round(255 * images).astype('uint8')",
    ),
    "not_saved": Signature(
        r"(?P<why>update \d+ was not saved: .+?)(?:; (?:no checkpoint|the newest)|$)",
        r"rank \d+: the checkpoint was not saved: (?P<why>.+)$",
        cause="cannot write a checkpoint: {why}",
        remedy="check the disk of runs/ (df -h, mount, ls -ld); earlier checkpoints are unchanged",
        transient=None,
    ),
}
