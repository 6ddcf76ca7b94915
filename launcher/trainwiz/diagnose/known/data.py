"""The training data."""

from __future__ import annotations

from trainwiz.diagnose.signature import Signature

TIER = 3
SIGNATURES = {
    "map_columns": Signature(
        r"ArrowInvalid: Column \d+ named (?P<column>\S+) expected length \d+ but got length \d+",
        cause="a batched map returned columns of different lengths ({column})",
        remedy="to drop the old columns: dataset.map(…, batched=True, remove_columns=dataset.column_names)",
    ),
    "saved_dataset": Signature(
        r"Couldn't cast\n(?:_\w+: .*\n|  +child .*\n)*_fingerprint: ",
        cause="the folder was written by save_to_disk, and load_dataset takes its state.json for data",
        remedy="load it with datasets.load_from_disk(FOLDER), or export it first: dataset.to_json(FILE) "
        "or to_parquet(FILE)",
    ),
    "different_columns": Signature(
        r"All the data files must have the same columns|because column names don't match",
        r"TypeError: Couldn't cast array of type|(?:ValueError|CastError)(?:'>)?: Couldn't cast$|^CastError$",
        cause="the files of the dataset have different columns",
        remedy="give all files the same columns, or choose the files to load: load_dataset(…, data_files=…)",
    ),
    "text_in_batch": Signature(
        r"ValueError: too many dimensions 'str'(?:[\s\S]{0,1500}ValueError: Unable to create tensor)?",
        r"TypeError: new\(\): invalid data type 'str'",
        cause="a batch has a column of text, which cannot become a tensor",
        remedy="drop such columns before the training: dataset.remove_columns([…]), or map(…, "
        "remove_columns=dataset.column_names)",
    ),
    "ragged_batch": Signature(
        r"each element in list of batch should be of equal size",
        r"Unable to create tensor, you should probably activate truncation and/or padding",
        r"ValueError: expected sequence of length \d+ at dim \d+ \(got \d+\)",
        cause="samples of different lengths cannot be put into one tensor",
        remedy="pad them: tokenizer(…, truncation=True, padding=True); pad labels with DataCollatorForSeq2Seq",
    ),
    "no_inputs": Signature(
        r"The batch received was empty, your model won't be able to train on it",
        r"IndexError: Invalid key: \d+ is out of bounds for size 0",
        r"No columns in the dataset match the model's forward method signature",
        r"You should supply an encoding or a list of encodings to this method that includes input_ids",
        r"You have to specify (?:either )?(?:input_ids|pixel_values)\b",
        cause="the batches contain none of the columns that the model needs",
        remedy="tokenize the data before the training (dataset.map); the Trainer drops columns that "
        "the model's forward "
        "does not name: remove_unused_columns=False keeps them",
    ),
    "missing_column": Signature(
        r"(?:Column name|Columns?) (?P<column>\[?'?[^\s\]]+\]?) (?:to .+ )?(?:is )?not in the dataset",
        r"(?P<column>'\w+') (?:is not|not found) in (?:the )?(?:columns|column_names)",
        cause="the dataset has no column {column}",
        remedy="print dataset.column_names; rename the column, or give the right name in the configuration",
    ),
    "missing_split": Signature(
        r"Unknown split \"(?P<split>[^\"]+)\"",
        r"dataset_dict\.py\"[\s\S]{0,400}?\nKeyError: '(?P<split>train|validation|test|eval|dev)'",
        cause="the dataset has no split {split}",
        remedy="print load_dataset(…).keys(); name a split that exists, or cut one off: "
        "dataset.train_test_split(test_size=0.05)",
    ),
    "fewer_than_ranks": Signature(
        r"assert len\(indices\) == self\.(?:total_size|num_samples)\n(?:[\s^~]+\n)?"
        r"(?:\[rank\d+\]: )?AssertionError",
        r"AssertionError: Number of (?:subsampled )?indices \(\d+\) does not match (?:total_size|num_samples) \(\d+\)",
        cause="the sampler was created for a different number of samples: the dataset changed its length since, or "
        "(with torch before 1.8) has fewer samples than ranks",
        remedy="print len(dataset) before the sampler is created and before the loop: create the sampler after "
        "everything that filters or extends the dataset; if the dataset is nearly empty, check its path",
    ),
    "byte_order_mark": Signature(
        r"KeyError: (?P<name>['\"](?:\\ufeff|\ufeff|ï»¿)[^\n]*)$",
        cause="the data file begins with a byte order mark, which became part of its first name or value: {name}",
        remedy="read it with encoding='utf-8-sig' (pandas, open, csv), or save it without the mark: sed -i "
        "'1s/^\\xEF\\xBB\\xBF//' FILE",
    ),
    "no_labels": Signature(
        r"The model did not return a loss from the inputs",
        r"return outputs\[\"loss\"\] if isinstance\(outputs, dict\)[\s\S]{0,600}?^(?:\[rank\d+\]: )?KeyError: 'loss'",
        r"in __getitem__\(self, k\)\n(?:.*\n){0,30}?KeyError: 'loss'$",
        r"KeyError: 'loss'\W*\n\S*transformers/\S+ in __getitem__\(self, k\)",
        cause="the batch has no labels, and the model returned no loss",
        remedy="let the collator create the labels: DataCollatorForLanguageModeling(tokenizer, mlm=False)",
    ),
    "chat_template": Signature(
        r"tokenizer\.chat_template is not set",
        cause="the tokenizer has no chat template; conversations need one",
        remedy="use the instruct version of the model, or set tokenizer.chat_template",
    ),
    "chat_refused": Signature(
        r"jinja2\.exceptions\.(?P<reason>(?:TemplateError|UndefinedError|TemplateRuntimeError): .+)$",
        cause="the chat template rejected a conversation: {reason}",
        remedy="compare a sample with what the template requires: roles that alternate and start with the user, "
        "whether a system message is allowed, and the keys role and content in each message",
    ),
    "map_worker": Signature(
        r"subprocesses has abruptly died during map operation",
        cause="a process that prepares the data (dataset.map) died without an exception, usually because host memory "
        "ran out",
        remedy="lower num_proc (preprocessing_num_workers, dataset_num_proc) and writer_batch_size; without "
        "num_proc, the underlying error is shown; check `dmesg | grep -i oom`",
        transient=None,
    ),
    "chat_template_unusable": Signature(
        r"^(?:\[rank\d+\]: )?(?P<name>.+): this chat template cannot be used: (?P<reason>.+)$",
        cause="the chat template {name} cannot be used: {reason}",
        remedy="fix the template, or set data.chat_template to null to use the tokenizer's own. A token that it "
        "writes must be in the tokenizer: use a model that has it, or write text instead",
    ),
    "key_twice": Signature(
        r"found duplicate key \"?(?P<key>[^\"\s]+)",
        cause="a YAML file has the key {key} twice",
        remedy="delete one of the two: the lines are listed further down in the log",
    ),
    "column_too_large": Signature(
        r"(?:ArrowInvalid|ArrowCapacityError|OverflowError): .*(?P<problem>offset overflow while concatenating arrays|"
        r"array cannot contain more than 2147483646 bytes[^\n]*)",
        cause="a column of the dataset has more than 2 GB in one part: {problem}",
        remedy="give map() a smaller batch_size and writer_batch_size, or fewer num_proc; cast the column to "
        "Value('large_string') or Array2D",
    ),
    "arrow_values": Signature(
        r"Arrow(?:Invalid|TypeError|NotImplementedError): (?P<problem>Can only convert 1-dimensional array values|"
        r"Could not convert .+|Expected bytes, got an? .+|Unsupported cast from .+|cannot mix .+|Only 1D arrays .+|"
        r"Tried to write .+|(?:Float|Integer) value .+ (?:truncated|too large).*)$",
        cause="a value does not match the type that Arrow chose for its column: {problem}",
        remedy="let the function of dataset.map return lists of plain numbers or strings (array.tolist()) with the "
        "same type in every row; or name the types with features=",
    ),
    "json_blocks": Signature(
        r"straddling object straddles two block boundaries",
        cause="a value in a JSON file is longer than the block that Arrow reads at once: the file is one large "
        "object, or "
        "a single row is very long",
        remedy="write one JSON object per line (JSON lines); if one row is really that long, load it with a larger "
        "chunksize: load_dataset('json', data_files=…, chunksize=100 << 20); rows inside of a key: field='data'",
    ),
    "malformed_data": Signature(
        r"^(?:\[rank\d+\]: )?(?P<place>.+(?::\d+|: item \d+)): not a JSON object",
        r"^(?:\[rank\d+\]: )?(?P<place>.+(?::\d+|: (?:item|row|text) \d+): (?:no column|column) \".*)$",
        r"^(?:\[rank\d+\]: )?(?P<place>.+:\d+: (?:not valid UTF-8|fields: \d+, but|two columns have|the names of).*)$",
        r"^(?:\[rank\d+\]: )?(?P<place>.+:\d+: zero bytes in a text: .*)$",
        r"^(?:\[rank\d+\]: )?(?P<place>.+:\d+: a quote takes in the lines .*)$",
        r"^(?:\[rank\d+\]: )?(?P<place>.+: cannot be read(?: after .+)?: \w+: .*)$",
        r"^(?:\[rank\d+\]: )?(?P<place>.+: (?:a table is not text|images are \S+, not \(|labels are not \d+ ).*)$",
        r"^(?:\[rank\d+\]: )?(?P<place>.+: images are .+ and labels .+; each image needs one)$",
        r"^(?:\[rank\d+\]: )?(?P<place>.+: sample \d+: the (?:text is .*|label is .*, not a finite number))$",
        r"^(?:\[rank\d+\]: )?(?P<place>.+: not a list of JSON objects.*)$",
        r"^(?:\[rank\d+\]: )?(?P<place>.+: it (?:holds|contains) .*, but no images to evaluate on.*)$",
        r"^(?:\[rank\d+\]: )?(?P<place>.+: (?:pictures that would be left out: |pixels of 32 bits, ).*)$",
        r"^(?:\[rank\d+\]: )?(?P<place>.+: (?:named twice among the sources|which of its folders are for training).*)$",
        r"^(?:\[rank\d+\]: )?(?P<place>.+: \S+ and \S+ are two texts that belong together, and only .*)$",
        r"^(?:\[rank\d+\]: )?(?P<place>.+: (?:these labels cannot be [a-z0-9 ]+:|this conversation cannot be used).*)$",
        r"^(?:\[rank\d+\]: )?(?P<place>.+: the key \".*\" is given twice; .*)$",
        r"\b(?:json\.decoder\.)?JSONDecodeError: (?P<place>.+)$",
        r"UnicodeDecodeError: (?P<place>.+)$",
        r"\b(?:pyarrow\.lib\.)?ArrowInvalid: (?P<place>.+)$",
        r"pandas\.errors\.ParserError: (?P<place>.+)$",
        r"PIL\.UnidentifiedImageError: (?P<place>.+)$",
        r"(?P<place>(?:soundfile\.LibsndfileError|decord\._ffi\.base\.DECORDError|av\.(?:error\.)?\w+Error): .+)$",
        r"OSError: (?P<place>image file is truncated.*)$",
        r"^(?:\[rank\d+\]: )?(?:OSError: )?(?P<place>.+: not a whole picture[:;].*)$",
        r"zipfile\.BadZipFile: (?P<place>.+)$",
        r"yaml\.\w+\.\w+Error: (?P<place>.+)$",
        cause="a file does not have the expected content: {place}",
        remedy="find the reader in the traceback. Data: fix or delete that line or image (a .jsonl file has one JSON "
        "object per line, in UTF-8); configuration: to find the line, run trainwiz check FILE",
    ),
    "no_data": Signature(
        r"EmptyDatasetError: The directory at (?P<source>\S+) ",
        r"has enough samples to at least yield one packed sequence(?P<source>)",
        r"(?<!\S)(?P<source>\S+): no (?:text to train on|images found; put|file in a readable)",
        r"(?<!\S)(?P<source>\S+) of \d+ samples(?: are \d+)?: (?:so many are identical that )?nothing would be left to "
        r"train",
        r"the (?:training|evaluation) data is empty(?P<source>)",
        r"^No data found\. Please verify arguments \((?P<source>train_data_dir) must be",
        r"num_samples should be a positive integer value, but got num_samples=0(?P<source>)",
        r"ValueError: (?P<source>)Instruction \"train\" corresponds to no data",
        cause="no usable samples in the data: {source}",
        remedy="check data.train: is it the right folder, and does it contain files with text?",
    ),
    "batch_norm_from_scratch": Signature(
        r"(?<!\S)(?P<model>\S+): \d+ layers of batch norm have no statistics of their own",
        cause="{model} has batch norm, and starts from random weights",
        remedy="set model.from_scratch to false, or take a network without batch norm: timm/convnext_tiny, "
        "timm/vit_small_patch16_224, or a preset",
    ),
    "timm_cannot_load": Signature(
        r"(?<!\S)(?P<model>\S+): timm cannot load this network: (?P<why>.*)",
        cause="timm has no network {model}, or no weights for it: {why}",
        remedy="set model.name to a name from `python -c 'import timm; print(timm.list_pretrained())'`, prefixed "
        "with timm/, or set model.from_scratch to true",
    ),
    "pad_token": Signature(
        r"tokenizer does not have a padding token",
        r"Cannot handle batch sizes > 1 if no padding token is defined",
        cause="the tokenizer has no padding token; a batch needs one",
        remedy="set tokenizer.pad_token = tokenizer.eos_token",
    ),
    "loader_timeout": Signature(
        r"DataLoader timed out after (?P<seconds>\d+) seconds",
        cause="the data loader returned nothing for {seconds} s",
        remedy="set data.num_workers to 0 to see where it hangs: slow storage, a lock, a request without a timeout",
        transient=None,
    ),
}
