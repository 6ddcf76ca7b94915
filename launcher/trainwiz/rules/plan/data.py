"""Data and model: whether they are there, and of use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trainwiz import tasks, vocabulary
from trainwiz.finding import Fix, Level, Violations, remedy, setting, violation
from trainwiz.machine import Machine
from trainwiz.message import Message, say
from trainwiz.plan import Plan, defaults
from trainwiz.project import DataFacts, ModelFacts, Project, is_part, share_of
from trainwiz.quantities import size
from trainwiz.rules.registry import rule
from trainwiz.tasks import chat_columns

PREFETCHED = 2
"""Batches that each worker of a DataLoader has ready: https://pytorch.org/docs/stable/data.html (prefetch_factor)."""
SIZE_TOLERANCE = 1.4
"""Names round: Qwen2.5 7B has 7.62 billion parameters, Gemma 7B has 8.54."""
BYTES_PER_TOKEN = 16
"""Inputs and labels (or the mask) as int64."""

_IN_TASK = {"data.train": "load_train_data", "data.eval": "load_eval_data", "model.name": "build_model"}
"""What a plan names for other tasks, and the function of task.py that has it where the code is the user's."""


@rule("TW511", level=Level.ERROR, field="data.train")
def data_is_found(plan: Plan, project: Project) -> Violations:
    """The data named in the plan must exist.

    Without it: every rank starts, imports torch, and stops with `no such file or folder` or a long error from the hub.
    Why: paths are relative to the project folder, and `~` is not expanded; a hub id has the form organization/name.
    Instead: use an absolute path, or one relative to the project folder.
    Source: the generated task.py
    """
    for key, data in _named(project):
        if data.kind == "missing":
            fix = _remedy(tasks.of(plan).data_names)
            yield violation("{key}: {name}: {detail}", fix, key=key, name=data.name, detail=data.detail, where=key)


@rule("TW512", level=Level.ERROR, field="data.train")
def data_is_readable(plan: Plan, project: Project) -> Violations:
    """The data must have the format that its file name implies.

    Without it: the training stops with `not a JSON object`, `no column "text"`, `this conversation cannot be used`,
    `these labels cannot be classes`, `not valid UTF-8` or `no pictures`, when it reaches that line.
    Why: .jsonl is one JSON object per line, .csv and .tsv name their columns in the first line, .txt is UTF-8 text and
    .npz holds arrays; texts and labels are in the columns named by data.text_column and data.label_column, and
    conversations and preferences in columns with well-known names, or those set in data.columns.
    Instead: set the right columns, or convert the file; to read another format, change sources.py.
    Source: the generated sources.py and task.py
    """
    for key, data in _named(project):
        if data.kind in ("file", "folder") and data.detail:
            known = data.remedy or _pairs(plan, data)
            words = None if known else _words_of_columns(plan, project, data)
            fix = words or _remedy(known or tasks.of(plan).data_forms)
            where = _missing_column(plan, data) or ("data.columns" if words else key)
            detail = data.detail.removeprefix(f"{data.name.rpartition('/')[2]}: ")  # the file is named already
            yield violation("{key}: {name}: {detail}", fix, key=key, name=data.name, detail=detail, where=where)


def _pairs(plan: Plan, data: DataFacts) -> Message | None:
    """What to make of several rated answers, where the task compares two; None where the first row has none."""
    task = tasks.of(plan)
    if not task.chats or task.talks or not chat_columns.rated(data.first):
        return None
    return say(
        "write the best answer of each row as chosen and a worse one as rejected; for UltraFeedback in this form, "
        "use {name}",
        name="HuggingFaceH4/ultrafeedback_binarized::train_prefs",
    )


def _words_of_columns(plan: Plan, project: Project, data: DataFacts) -> Fix | None:
    """The setting that reads columns of other names; None where nothing is likely, or it would not fit other data."""
    task = tasks.of(plan)
    guess = chat_columns.guessed(data.first, compares=not task.talks) if task.chats and data.first else None

    def is_read(first: Mapping[str, Any], columns: str | None) -> bool:
        return chat_columns.problem(chat_columns.renamed(first, columns), compares=not task.talks) is None

    # Of several files, the first row is that of the first one, which may not be the one with the problem.
    if guess is None or is_read(data.first, plan.data.columns):
        return None
    if not all(is_read(other.first, guess.spelled) for _, other in _named(project) if other.first):
        return None
    return remedy("set data.columns to {columns}", {"data.columns": guess.spelled}, columns=guess.spelled)


def _missing_column(plan: Plan, data: DataFacts) -> str | None:
    """The key of the column that its first row lacks; None where it has all, or nobody knows."""
    task = tasks.of(plan)
    one_label = task.text_column and task.labeled and not task.several_columns
    wanted = {
        "data.text_column": plan.data.text_column if task.text_column else None,
        "data.label_column": plan.data.label_column if one_label else None,
    }
    return next((key for key, name in wanted.items() if name and data.first and name not in data.first), None)


@rule("TW558", level=Level.ERROR, field="data.label_column")
def columns_differ(plan: Plan) -> Violations:
    """Inputs and labels must come from different columns.

    Without it: the model sees the answer that it should predict. Loss and evaluation metrics are far too good, and the
    model only learns to copy. From two equal answers it learns nothing: the loss stays at 0.693.
    Why: data.text_column and data.image_column name the inputs, data.label_column names what is predicted. The words in
    data.columns stand for different parts of a row.
    Instead: name the column that contains the labels, or the answers.
    Source: the generated task.py and column_names.py, which read each column by its name
    """
    task = tasks.of(plan)
    pairs: list[tuple[str, str]] = []
    if task.chats and plan.data.columns:
        pairs = list(chat_columns.named(plan.data.columns).items())
    elif task.labeled and (task.text_column or task.backbones):
        key = "image_column" if task.backbones else "text_column"
        labels = plan.data.label_column.split(",") if task.several_columns else [plan.data.label_column]
        pairs = [(key, getattr(plan.data, key)), *(("label_column", label.strip()) for label in labels)]
    names = [name for _, name in pairs]
    if twice := next((name for name in names if names.count(name) > 1), None):
        one, other = [word for word, name in pairs if name == twice][:2]
        field = "data.columns" if task.chats else "data.label_column"
        yield violation(
            "the column {column} is both {one} and {other}",
            remedy("name another column in {key}", key=field),
            column=twice,
            one=one,
            other=other,
            where=field,
        )


@rule("TW513", level=Level.ERROR, field="model.name")
def model_is_found(plan: Plan, project: Project) -> Violations:
    """The model named in the plan must exist, with all of its weights.

    Without it: every rank stops with `OSError: … is not a local folder and is not a valid model identifier`, after
    the data has been read.
    Why: a model is a trainwiz preset, a local folder with a config.json, or a hub id (organization/name).
    Instead: use one of these. A preset without published weights can only be trained from scratch.
    Source: https://huggingface.co/docs/transformers/main_classes/model#transformers.PreTrainedModel.from_pretrained
    """
    model = project.model
    if model and model.kind == "missing":
        fix = Fix(message=model.remedy or _models(plan))
        yield violation("model.name: {name}: {detail}", fix, name=model.name, detail=model.detail)


@rule("TW536", level=Level.ERROR, field="model.parameters")
def the_size_of_the_model_is_known(project: Project) -> Violations:
    """The size of the model must be known.

    Without it: it is unknown whether the model fits, and a strategy is chosen blindly: 70 billion parameters under DDP
    need 1.1 TB on each GPU.
    Why: memory, strategy, micro-batch and learning rate depend on the number of parameters. It comes from the model's
    files, from the hub, from a table of well-known models, or from a name such as my-model-7b.
    Instead: set model.parameters, for example to 7B.
    Source: trainwiz's own estimates
    """
    model = project.model
    if model and model.kind in ("hub", "folder") and not model.parameters:
        yield violation(
            "the size of {name} is unknown: it is not in its files, on the hub or in its name",
            remedy("set model.parameters, for example to 7B, or type it after the name: {name} 7B", name=model.name),
            name=model.name,
        )


@rule("TW537", level=Level.WARNING, field="model.parameters")
def the_size_in_the_plan_is_that_of_the_model(plan: Plan, project: Project) -> Violations:
    """model.parameters must match the model in the plan.

    Without it: the plan was made for another model, and its strategy and micro-batch may not fit.
    Why: model.parameters was found or entered when the plan was made. The model has changed since, or was not
    available then.
    Instead: run trainwiz init again with the new model, or remove the number: it is then looked up by name.
    Source: trainwiz's own estimates
    """
    told, model = plan.model.parameters, project.model
    real = (model.usual_parameters if model.size_source == "plan" else model.parameters) if model else None
    if told and real and max(told, real) > SIZE_TOLERANCE * min(told, real):
        yield violation(
            "model.parameters is {told}, but {name} has about {real} parameters",
            remedy("run trainwiz init again, or remove model.parameters", {"model.parameters": None}),
            told=f"{told:,}",
            name=plan.model.name,
            real=f"{real:,}",
        )


@rule("TW519", level=Level.ERROR, field="model.name")
def model_folder_has_a_tokenizer(plan: Plan, project: Project) -> Violations:
    """A model folder must contain a tokenizer.

    Without it: the generated task.py stops with `no tokenizer, or an empty one`. Other scripts train to the end:
    transformers returns an empty tokenizer for some models (GPT-2, Qwen, OLMo), and every text becomes the same few
    special tokens.
    Why: saving a model does not save its tokenizer, so folders written by training scripts often lack it.
    Instead: copy the tokenizer's files from the model that the folder was trained from.
    Source: seen with transformers 5.23
    """
    model = project.model
    if model and tasks.of(plan).from_hub and model.has_tokenizer is False:
        yield violation(
            "model.name: {name} contains no tokenizer, so text cannot be read",
            remedy("copy tokenizer.json and tokenizer_config.json into the folder from the model it was trained from"),
            name=model.name,
        )


@rule("TW540", level=Level.ERROR, field="data.train")
def own_code_has_its_own_data_and_model(plan: Plan) -> Violations:
    """The task custom gets its data and model from task.py.

    Without it: the project trains the example in task.py, a small regression, and ignores the plan's data and model.
    Why: `data.train`, `data.eval` and `model.name` are for tasks whose code trainwiz writes.
    Instead: load the data in `load_train_data` and build the model in `build_model` of task.py; or choose a task that
    reads this data. A script of your own becomes task.py with `trainwiz import --script`.
    Source: the generated task.py
    """
    if not tasks.of(plan).own_code:
        return
    usual = defaults()
    for key, function in _IN_TASK.items():
        value, ours = plan.get(key), usual.get(key, vocabulary.EMBEDDED)
        if value not in (ours, None):
            yield violation(
                "{key} {name} is not used: the task {task} gets it from {function} in task.py",
                remedy(
                    "set {key} to {ours}, and write {function} in task.py",
                    {key: ours},
                    key=key,
                    ours=ours,
                    function=function,
                ),
                key=key,
                name=value,
                task=plan.task,
                function=function,
                where=key,
            )


@rule("TW542", level=Level.ERROR, field="data.packing")
def packing_is_for_rows_of_documents(plan: Plan) -> Violations:
    """Only documents and conversations can share a row.

    Without it: data.packing is ignored, and each sample has its own row, although the plan says otherwise.
    Why: an answer that is compared with another needs its own row, a labeled text its own output, and images have
    no rows.
    Instead: set data.packing to false. Samples of similar length share a micro-batch, so there is little
    padding.
    Source: the generated task.py
    """
    if plan.data.packing and not tasks.of(plan).packs:
        yield violation(
            "data.packing is true, but in the task {task} each sample has its own row",
            setting("data.packing", False),
            task=plan.task,
        )


@rule("TW514", level=Level.ERROR, field="model.name")
def hub_ids_are_cached_offline(project: Project) -> Violations:
    """When offline, models and data from the hub must already be in the cache.

    Without it: every rank stops with `OSError: We couldn't connect to 'https://huggingface.co' to load the files,
    and couldn't find them in the cached files`; if the data is missing, with `ConnectionError: Couldn't reach … on
    the Hub (OfflineModeIsEnabled)`.
    Why: HF_HUB_OFFLINE is set, so nothing is downloaded.
    Instead: download it on a machine with network access, with the same HF_HOME: `hf download ID` for a model, `hf
    download --repo-type dataset ID` for data.
    Source: seen with transformers 5.23 and datasets;
    https://huggingface.co/docs/huggingface_hub/package_reference/environment_variables#hfhuboffline
    """
    named: list[tuple[str, DataFacts | ModelFacts]] = [*_named(project)]
    if project.model:
        named.append(("model.name", project.model))
    for key, facts in named:
        if project.offline and facts.kind == "hub" and facts.cached is False:
            command = f"hf download {'--repo-type dataset ' if key.startswith('data.') else ''}{facts.name}"
            yield violation(
                "{key}: {name} is not in the local cache, but HF_HUB_OFFLINE is set",
                remedy("on a machine with network access, run: {command}", command=command),
                key=key,
                name=facts.name,
                where=key,
            )


@rule("TW515", level=Level.ERROR, field="data.train")
def data_is_not_empty(plan: Plan, project: Project) -> Violations:
    """The data must contain at least one sample, or two if a part of it is held out for evaluation.

    Without it: task.py stops with `no text to train on`, `no pictures` or `nothing would be left to train`.
    Why: the file is empty, or the folder has no files in a known format, or no pictures; or the part in data.eval
    contains none of the samples, or all: a .txt file is one document, whatever its length.
    Instead: set the folder that contains the files; evaluate on another file.
    Source: seen with the generated scripts
    """
    for key, data in _named(project):
        if data.kind in ("file", "folder") and 0 in (data.samples, data.samples_at_most):
            fix = _remedy(tasks.of(plan).data_names)
            yield violation("{key}: {name} contains no training data", fix, key=key, name=data.name, where=key)
    amount, part = project.train.amount if project.train else None, plan.data.eval or ""
    if not amount or not is_part(part) or not (amount.exact or plan.data.train.endswith(".txt")):
        return
    total = min(amount.documents, plan.data.max_rows or amount.documents)
    kept = round(share_of(part, total) * total)
    if not 0 < kept < total:
        yield violation(
            "data.eval: {part} of {total} samples are {kept}: no data would be left to train or evaluate on",
            remedy(
                "evaluate on another file, or leave data.eval empty; a .txt file is one sample, a .jsonl file one "
                "per line",
                {"data.eval": None},
            ),
            part=part,
            total=total,
            kept=kept,
            where="data.eval",
        )


@rule("TW516", level=Level.HINT, field="data.eval")
def there_is_evaluation(plan: Plan) -> Violations:
    """Evaluate on data that is not used for training.

    Without it: a falling loss may only mean memorization, and nothing shows when to stop.
    Why: data.eval is empty.
    Instead: set data.eval to a part of the training data, such as 5%, which is then excluded from training, or to other
    data.
    Source: https://www.deeplearningbook.org/contents/ml.html, section 5.3
    """
    if plan.data.eval is None:
        yield violation(
            "data.eval is empty: only the training loss is measured",
            remedy("set data.eval to a part of the training data (5%), or to other data"),
        )


@rule("TW517", level=Level.WARNING, field="data.eval")
def evaluation_is_held_out(plan: Plan, project: Project) -> Violations:
    """Evaluation data must not be the training data.

    Without it: the evaluation loss falls with the training loss, no matter what the model has learned.
    Why: both settings name the same source, or contain the same file. (The embedded text, hub datasets, and folders
    whose files or folders are named train and val, are split by their loaders.)
    Instead: hold out a part of the training data (data.eval: 5%), split the file, or leave data.eval empty.
    Source: https://www.deeplearningbook.org/contents/ml.html, section 5.3
    """
    train, held_out = project.train, project.eval
    if not train or not held_out or not plan.data.eval or held_out.kind not in ("file", "folder"):
        return
    if train.parts and not held_out.shared:
        return
    same = [name for name in _sources(plan.data.eval) if name in _sources(plan.data.train)] or [held_out.shared]
    if same[0]:
        fix = remedy("set data.eval to 5%, to a held-out file, or leave it empty", {"data.eval": None})
        yield violation("data.eval and data.train both contain {same}", fix, same=same[0])


@rule("TW555", level=Level.HINT, field="data.train")
def all_files_of_a_folder_are_read(project: Project) -> Violations:
    """Lists the files in a data folder that are ignored.

    Without it: the model silently learns from only a part of the data.
    Why: only files in a format that the task supports are read. If some names say that a file is for training, and
    others that it is not (train.csv, test/a.csv), data.train uses the former, and data.eval the latter. Files without
    such a name, like all.csv beside them, often hold the rows of both and are not read.
    Instead: convert the other files, or move them elsewhere; or list the files to read with a pattern such as data/*.
    Source: the generated sources.py
    """
    for key, data in _named(project):
        if data.left_out and not data.detail:
            yield violation(
                "{key}: {name}: files that are ignored: {count}, the first: {first}",
                remedy("convert them to a supported format, or move them elsewhere"),
                key=key,
                name=data.name,
                count=len(data.left_out),
                first=data.left_out[0],
                where=key,
            )
    train = project.train
    if train and train.unnamed and not train.detail:
        yield violation(
            "data.train: {name}: files that are ignored, since others are named as training and evaluation data: "
            "{count}, the first: {first}",
            remedy("give them the name of a part (train-2.csv), or list the files to read in data.train"),
            name=train.name,
            count=len(train.unnamed),
            first=train.unnamed[0],
        )


@rule("TW565", level=Level.WARNING, field="data.image_size")
def arrays_keep_their_size(plan: Plan, project: Project) -> Violations:
    """data.image_size should be the size of the pictures in an .npz file, which are not resized.

    Without it: the forecast of memory and time is that of other pictures, and so is the micro-batch that is chosen by
    it; transformers such as timm/vit_base_patch16_224 are built for that size and stop: `AssertionError: Input height
    (64) doesn't match model (224)`.
    Why: arrays are used as they are; only images from files are resized.
    Instead: set data.image_size to the size in the file.
    Source: the generated task.py and network.py; timm/layers/patch_embed.py in timm 1.0.31
    """
    data = project.train
    if data and data.picture_size and data.picture_size != plan.data.image_size and plan.data.train.endswith(".npz"):
        yield violation(
            "data.image_size is {size}, but the pictures in {name} have {edge} pixels along each edge",
            setting("data.image_size", data.picture_size),
            size=plan.data.image_size,
            name=data.name,
            edge=data.picture_size,
        )


@rule("TW518", level=Level.ERROR, field="data.num_workers")
def workers_fit_shared_memory(plan: Plan, machine: Machine) -> Violations:
    """/dev/shm must have room for the batches that the data workers prefetch.

    Without it: `RuntimeError: unable to allocate shared memory(shm) for file …: No space left on device (28)`,
    often only minutes into the run; older torch reports `DataLoader worker (pid …) is killed by signal: Bus error`.
    Why: workers pass batches on through shared memory, two each. Docker gives a container 64 MB of it.
    Instead: start the container with `--shm-size 8g` or `--ipc=host`, or use fewer workers.
    Source: seen with torch 2.13; https://docs.docker.com/engine/containers/run/
    """
    workers = plan.data.num_workers * plan.machine.ranks_per_machine
    if workers == 0 or machine.shm is None or not tasks.of(plan).from_hub:
        return
    need = workers * (PREFETCHED + 1) * BYTES_PER_TOKEN * plan.batch.per_device_batch_size * plan.batch.sequence_length
    have = machine.shm.free_bytes if machine.probed else machine.shm.total_bytes
    if need > have:
        free = say("{size} free", size=size(have)) if machine.probed else say("{size} in total", size=size(have))
        yield violation(
            "{workers} data workers keep up to {need} of batches in /dev/shm (space: {room})",
            remedy(
                "set data.num_workers to 0, or enlarge /dev/shm (docker run --shm-size 8g)", {"data.num_workers": 0}
            ),
            workers=workers,
            need=size(need),
            room=free,
        )


def _named(project: Project) -> Iterator[tuple[str, DataFacts]]:
    if project.train:
        yield "data.train", project.train
    if project.eval:
        yield "data.eval", project.eval


def _sources(names: str | None) -> list[str]:
    return [name.strip() for name in (names or "").split(",")]


def _remedy(words: Message | None) -> Fix | None:
    return Fix(message=words) if words else None


def _models(plan: Plan) -> Message:
    task = tasks.of(plan)
    presets = ", ".join(task.presets)
    if task.backbones:
        return say(
            "use a preset ({presets}) with random weights, a timm network (timm/convnext_tiny.fb_in22k), a folder "
            "with its config.json, or a hub id (organization/name)",
            presets=presets,
        )
    return say(
        "use a preset ({presets}), a folder with a config.json, or a hub id (organization/name)", presets=presets
    )
