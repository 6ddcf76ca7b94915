"""What the words of an unknown exception are about, and what to compare then.

The cause stays unknown: a subject narrows the search down to one part of a training.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from trainwiz.message import Message


# docs/decisions/diagnosis.md: If only the exception's own words are known, the diagnosis says what they are about
@dataclass(frozen=True)
class Subject:
    """One part of a training. Both texts are literal sentences."""

    words: str
    """A pattern of the words that only this part uses."""
    about: Message
    """The part, as the title of a card names it."""
    remedy: Message
    """What to compare or to look at where nothing more is known."""


# Specific before general: the first one whose words occur is taken.
SUBJECTS = (
    Subject(
        r"does(?: not|n't) recogni[sz]e|[Nn]ot recogni[sz]ed|[Uu]nrecogni[sz]ed|\b[Uu]nknown\b|[Nn]ot registered|"
        r"invalid choice|not (?:in|among) the (?:registry|list)",
        Message("a name that is not known here"),
        Message(
            "correct its spelling; if it is right, it belongs to a newer version of the package that raises this (pip "
            "install --upgrade PACKAGE), or to a module that must be imported first"
        ),
    ),
    Subject(
        r"undefined symbol|\bABI\b|binary incompatib|compiled (?:with|for|against)",
        Message("a compiled package for other versions"),
        Message(
            "reinstall the package that is named for the installed torch and CUDA: pip install --force-reinstall "
            "--no-deps --no-cache-dir --no-build-isolation PACKAGE"
        ),
    ),
    Subject(
        r"\b4-?bit|\b8-?bit|quanti[sz]|\bint[48]\b|\bnf4\b|\bfp8\b|bitsandbytes|\bgptq\b|\bawq\b|Params4bit",
        Message("quantized weights"),
        Message(
            "try the same without quantization; quantized weights can be neither trained, cast nor moved: train "
            "an adapter on top of them, and leave their dtype and device to from_pretrained"
        ),
    ),
    Subject(
        r"\bFSDP|\bZeRO\b|flat_?param|\bDTensor|[Uu]n?shard|\bshards?\b|\bsharded|ds_id|[Gg]emini|inflight",
        Message("weights sharded across the ranks"),
        Message(
            "try the same under DDP or ZeRO 2, which do not shard weights; a sharded weight is whole only while its"
            " own module runs"
        ),
    ),
    Subject(
        r"\bLoRA\b|\blora_|\badapters?\b|target_modules|\bpeft\b|\bPEFT\b",
        Message("the adapter"),
        Message(
            "compare the adapter's configuration with print(model) and with the base model it was made for; try "
            "the same without the adapter"
        ),
    ),
    Subject(
        r"[Dd]ynamo|[Ii]nductor|\b[Tt]riton\b|torch\.compile|[Tt]orch[Ss]cript|graph break|\bnvcc\b|\bninja\b",
        Message("code that must be compiled"),
        Message("try the same without compiling: TORCHDYNAMO_DISABLE=1; then clear the caches of earlier builds"),
    ),
    Subject(
        r"\b[Xx][Ll][Aa]\b|\b[Tt][Pp][Uu]\b|xmp\.spawn|\b[Pp][Jj][Rr][Tt]\b",
        Message("TPUs and XLA"),
        Message(
            "use torch and torch_xla of the same version; touch the XLA device only inside the function that is "
            "spawned, and put model and batch on it; restart a TPU that a cancelled run left busy"
        ),
    ),
    Subject(
        r"MASTER_(?:ADDR|PORT)|master_(?:addr|port)|(?:single|multi|multiple)[- ]?nodes?\b|nnodes|num_nodes|rendezvous|"
        r"main_process_(?:ip|port)",
        Message("how the machines find each other"),
        Message(
            "give all machines the same MASTER_ADDR (one of machine 0's addresses) and MASTER_PORT (a free port), the "
            "same number of machines, and each its own rank"
        ),
    ),
    Subject(
        r"process group|[Ww]orld[ _]size|\bcollective|all_?reduce|all_?gather|\bbroadcast\b(?! together)"
        r"|device mesh|DeviceMesh|(?:pipeline|tensor|model|expert|context|data)[ _]parallel|\branks?\b",
        Message("communication between the ranks"),
        Message(
            "compare on all ranks: the world size, the parallel sizes, and the branch of the code that each rank "
            "takes; every group must be created before it is used"
        ),
    ),
    Subject(
        r"[Cc]heckpoint|state[ _]dict|\bresum|safetensors|\.(?:pt|pth|bin)\b",
        Message("loading or saving a checkpoint"),
        Message(
            "compare names and shapes in the checkpoint with the model; a file may be truncated, or from another "
            "version or number of ranks"
        ),
    ),
    Subject(
        r"[Aa]ttention|\battn|[Ff]lash|seqlen|\bsdpa\b|head_dim|position",
        Message("attention and positions"),
        Message(
            "try attn_implementation='sdpa' or 'eager'; compare the length of the samples with the model's maximum"
        ),
    ),
    Subject(
        r"[Tt]okeniz|[Cc]hat template|\btokens?\b|\bvocab|\bpad(?:ding)?\b|[Pp]rompts?\b|\bimages?\b|\bpixel|\baudio",
        Message("the text, tokens or pictures of a sample"),
        Message(
            "print one sample before and after tokenizing; use tokenizer, processor and model from the same folder"
        ),
    ),
    Subject(
        r"[Dd]ata ?sets?\b|[Dd]ata ?[Ll]oader|\bcolumns?\b|\bsamples?\b|\bbatch|[Cc]ollat|\blabels?\b|"
        r"\bfeatures?\b|iterat",
        Message("the data or its batches"),
        Message(
            "print the first and the last batch, which may be smaller or empty; compare its names with what the "
            "model accepts"
        ),
    ),
    Subject(
        r"\bdtypes?\b|[Ff]loat(?:16|32|64)?\b|\b[Hh]alf\b|[Bb][Ff]loat|\bbf16\b|\bfp16\b|\bLong\b|scalar type|integer",
        Message("mixed dtypes"),
        Message(
            "print the dtype of both sides; choose one mixed precision for the whole model, and no .half() by hand"
        ),
    ),
    Subject(
        r"\bcuda\b|\bCUDA\b|\bGPUs?\b|\bdevices?\b|\bNPUs?\b|\bdriver\b",
        Message("placement of tensors or ranks"),
        Message(
            "each rank needs its own GPU (LOCAL_RANK), with model and batch on it; compare with CUDA_VISIBLE_DEVICES"
        ),
    ),
    Subject(
        r"\bshapes?\b|\bsizes?\b|\bdim(?:ension)?s?\b|\bnumel\b|\belements?\b|\blengths?\b",
        Message("shapes that do not fit together"),
        Message(
            "print the shapes of both sides; look for a short last batch, another number of classes, or a resized "
            "vocabulary"
        ),
    ),
    Subject(
        r"[Oo]ptimi[sz]er|[Ss]cheduler|[Ll]earning rate|\bgrad|param(?:eter)?[ _]groups?|\bloss\b|"
        r"\bsteps?\b|\bepochs?\b",
        Message("the loss, the gradients or the optimizer"),
        Message("print the loss and the gradient norm of the first updates; check what is frozen and who calls step"),
    ),
    Subject(
        r"\bmemory\b|\balloc|\bOOM\b",
        Message("memory"),
        Message("compare what is free with what is requested: nvidia-smi, free -g, df -h /dev/shm"),
    ),
    Subject(
        r"\b[Vv]ersions?\b|deprecat|no longer|\bremoved\b|install|\bpackage|\bmodule\b|\bimport",
        Message("versions of packages"),
        Message("compare pip list with the requirements of the code; install the versions that it requires"),
    ),
    Subject(
        r"\bfiles?\b|\bpaths?\b|director|\bfolder|[Pp]ermission|\burl\b|\bURL\b|[Hh]ttps?|[Dd]ownload|"
        r"\bconnect|\bport\b",
        Message("a file or a connection"),
        Message("open the same path or address by hand, on the same machine and as the same user as the rank"),
    ),
    Subject(
        r"[Cc]onfig|[Aa]rgument|\boptions?\b|\bflags?\b|\bsettings?\b|[Pp]arameter|--\w",
        Message("a setting"),
        Message("compare the setting's name and value with the documentation of the installed version"),
    ),
)


def of(words: str) -> Subject | None:
    """The part of a training that an exception's words are about."""
    return next((subject for subject in SUBJECTS if re.search(subject.words, words)), None)
