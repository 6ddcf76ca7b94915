"""What Python's own errors mean, for an exception that no signature explains.

The cause stays unknown, but the message is explained. They are tried last and are not listed as suspects, since they
say what broke and not why.
"""

from __future__ import annotations

import re

from trainwiz.diagnose.signature import Signature

_ENDS = r"^(?:\[rank\d+\]: )?(?:[\w.]+\.)?"
EXPLANATIONS = {
    "internal_assert": Signature(
        r"INTERNAL ASSERT FAILED at \"?(?P<file>[^\"\s]+?)\"?:\d+.*?\. ?(?P<words>(?!please report).*)$",
        r"INTERNAL ASSERT FAILED at \"?(?P<file>[^\"\s]+?)\"?:\d+(?P<words>.*)$",
        cause="a check inside torch failed, in {file}: a bug in this version, or an unsupported use {words}",
        remedy="the last call of your code, at {where}, shows which feature to avoid; otherwise try another version of "
        "torch",
    ),
    "system_refuses": Signature(
        rf"{_ENDS}\w*Error: \[Errno \d+\] (?P<words>.+)$",
        cause="the operating system refuses: {words}",
        remedy="check the path and its file system at {where}: network and cloud file systems lack some operations "
        "(locks, appending, links); a local disk has them",
    ),
    "value_is_none": Signature(
        r"(?:Attribute|Type)Error: (?P<what>'NoneType' object .+)$",
        rf"{_ENDS}TypeError: (?P<what>unsupported operand type.+'NoneType'.*)$",
        rf"{_ENDS}TypeError: (?P<what>.+ not (?:'?NoneType'?|supported between instances of 'NoneType' and .+))$",
        cause="a required value is None: {what}",
        remedy="find out at {where} which name is None: an option that is not set, a file or a key that was not found, "
        "or a function without return",
    ),
    "http_status": Signature(
        rf"{_ENDS}\w*(?:HTTP|Http|Hub)\w*Error: (?P<words>(?:\(Request ID[^)]*\) ?)?40[13]\b.*)$",
        cause="a server refuses the access: {words}",
        remedy="log in with a token that may read or write there (hf auth login, wandb login), and accept the terms "
        "of a gated model on its page",
    ),
    "http_missing": Signature(
        rf"{_ENDS}\w*(?:HTTP|Http|Hub)\w*Error: (?P<words>(?:HTTP Error )?404\b.*)$",
        cause="a server does not have what is asked for: {words}",
        remedy="check the name, the revision and the address at {where}; what is private reads as missing without a "
        "token",
    ),
    "http_busy": Signature(
        rf"{_ENDS}\w*(?:HTTP|Http|Hub)\w*Error: (?P<words>(?:HTTP Error )?(?:429|5\d\d)\b.*)$",
        cause="a server is busy or out of order: {words}",
        remedy="wait and start again; download models and data once, before the launch, and not on every rank",
    ),
    "own_attribute": Signature(
        r"AttributeError: '(?P<type>\w+)' object has no attribute '(?P<name>\w+)' <- .*\bself\.(?P=name)\b",
        cause="a method of {type} uses its own {name}, which was never set",
        remedy="something that sets it was left out: a call that must come before (prepare, setup, init_trackers), "
        "super().__init__() in a class of yours, or a step that failed without a word; it was asked for at {raised}",
    ),
    "exception_as_value": Signature(
        rf"{_ENDS}AttributeError: '(?P<type>[\w.]*(?:Error|Exception))' object has no attribute '(?P<name>\w+)'",
        cause="a caught {type} was passed on as if it were a result, which would have {name}",
        remedy="find the {type} itself: look for an except clause before {where} that returns it, and let it raise; "
        "a newer version of the package may have fixed this",
    ),
    "plain_value": Signature(
        rf"{_ENDS}AttributeError: '(?P<type>str|list|dict|int|float|tuple|bool|set|bytes|function|method|generator|"
        r"builtin_function_or_method|(?:numpy\.)?ndarray|Tensor|Column|DataFrame|Series|dict_keys|map|zip|range|"
        r"BatchEncoding|BatchFeature|_io\.\w+)' object has no attribute '(?P<name>\w+)'",
        cause="the code expects an object with {name}, but got a {type}",
        remedy="print it at {where}: a string where a path, a tokenizer or a model was expected, or a result that "
        "another version of a package returns in a different form",
    ),
    "part_of_model": Signature(
        rf"{_ENDS}AttributeError: '(?P<type>\w+(?:For[A-Z]\w+|Model|Layer|Block|Attention|MLP|Transformer|Linear))' "
        r"object has no attribute '(?P<name>\w+)'",
        cause="{type} has no {name}: the code is for a model of another kind, or for another version of it",
        remedy="compare with print(model) at {where}; if the code belongs to a package, update it together with "
        "transformers, or use a model that it supports",
    ),
    "missing_attribute": Signature(
        rf"{_ENDS}\w*AttributeError: '(?P<type>[\w.]+)' object has no attribute '(?P<name>\w+)'",
        rf"{_ENDS}AttributeError: type object '(?P<type>[\w.]+)' has no attribute '(?P<name>\w+)'",
        cause="{type} has no attribute {name}: a typo, or the code was written for another version of the package that "
        "defines {type}",
        remedy="look at {where}; if {type} comes from a package, install the version that the code needs: compare "
        "its requirements with pip list",
    ),
    "wrong_arguments": Signature(
        rf"{_ENDS}TypeError: (?P<call>[\w.<>]+)\(\) (?P<problem>missing \d+ required .+|takes .+ positional argument.+|"
        r"got multiple values for .+|got an unexpected keyword argument .+)$",
        cause="{call} is called with arguments that do not fit: {problem}",
        remedy="compare the call at {where} with the function's definition; if it comes from a package, the code was "
        "written for a different version of it",
    ),
    "no_number": Signature(
        rf"{_ENDS}ValueError: (?P<problem>invalid literal for int\(\).*|could not convert string to float.*)$",
        cause="a string was given where a number is expected: {problem}",
        remedy="look at {where}: an argument or environment variable that is empty or contains a list, or a line of "
        "the data that is not a number",
    ),
    "wrong_type": Signature(
        rf"{_ENDS}TypeError: (?P<problem>object of type '\w+' has no len\(\)|unsupported operand type.+|"
        r"'[\w.]+' object (?:is not|does not|cannot|doesn't) .+|(?:list|tuple|string|slice) indices must be .+|"
        r"argument of type .+|cannot unpack non-iterable .+|can't convert (?!cuda).+|"
        r".+ not supported between instances of .+|.*\b(?:must be|expected|can only concatenate|should be) .+)$",
        cause="a value has the wrong type for this operation: {problem}",
        remedy="print the value and its type at {where}: a string from a configuration or a command line, a label or "
        "a column with other contents, or a function that returns something else in the installed version",
    ),
    "undefined_name": Signature(
        rf"{_ENDS}(?:NameError|UnboundLocalError): (?P<problem>.+)$",
        cause="a name is used that has no value here: {problem}",
        remedy="look at {where}: a typo, an assignment in a branch that was not taken, or an import "
        "that failed and was "
        "caught (try: import …)",
    ),
    "environment_variable": Signature(
        rf"{_ENDS}KeyError: '(?P<key>[A-Z][A-Z0-9]*_[A-Z0-9_]+)'",
        cause="{key} was not found; it looks like an environment variable that is not set, or not exported to the "
        "ranks",
        remedy="run: export {key}=…, before the launch; launchers on other machines and in containers must pass it on",
    ),
    "told_by_key": Signature(
        rf"{_ENDS}KeyError: (['\"])(?P<words>(?=(?:(?!\1).)*\b(?:is|are|was|not|no|should|must|please|cannot|"
        rf"unexpected|"
        r"unknown|missing|invalid)\b)[^\s'\"]+(?: [^\n]+){2,})\1$",
        cause="the program rejected it: {words}",
        remedy="follow the message; it was raised in a call from {where}",
    ),
    "missing_key": Signature(
        rf"{_ENDS}KeyError: (?P<key>.+)$",
        cause="a dictionary, a table or a state dict has no key {key}",
        remedy="print the keys that exist at {where}: the columns of the data, the options of the configuration, or "
        "the names in the checkpoint",
    ),
    "list_too_short": Signature(
        rf"{_ENDS}IndexError: (?P<problem>(?:list|tuple|string) index out of range|pop from (?:an )?empty \w+|"
        r"index -?\d+ is out of bounds for (?:axis|dimension) \d+ with size \d+|too many indices for .+)$",
        cause="an index is out of range: {problem}",
        remedy="print the length at {where}: usually a sample, a batch or a list of files is empty or shorter than "
        "expected",
    ),
    "empty": Signature(
        rf"{_ENDS}\w*Error: (?P<problem>(?:max|min)\(\)(?: arg| iterable argument) is (?:an )?empty.*|"
        r"(?:torch\.cat|stack)\(\): expected a non-empty list.*|reduce\(\) of empty .*|"
        r"stack expects a non-empty TensorList|need at least one array to (?:stack|concatenate))",
        cause="a list that must hold something is empty: {problem}",
        remedy="find out at {raised} what the list holds: the files or samples that were found, the outputs of an "
        "evaluation, or the parameters that are trained (all frozen, or an adapter that matched no module)",
    ),
    "unpacking": Signature(
        rf"{_ENDS}ValueError: (?P<problem>(?:too many|not enough) values to unpack .+)$",
        cause="the number of values to unpack does not match: {problem}",
        remedy="print the value, or the tensor's shape, at {where}: a missing or extra dimension, or a function that "
        "returns something else in the installed version",
    ),
    "division_by_zero": Signature(
        rf"{_ENDS}ZeroDivisionError: .+$",
        cause="a number is divided by zero: usually a loader, a dataset or a counter is empty",
        remedy="print the divisor at {where}; with several ranks, each needs at least one batch (drop_last, too few "
        "samples)",
    ),
    "not_divisible": Signature(
        rf"{_ENDS}(?:Assertion|Value|Runtime)Error: (?P<problem>.*\bdivisible\b.*)$",
        cause="numbers that must divide each other do not: {problem}",
        remedy="change one of them; heads, layers and hidden size must be divisible by the parallel sizes, and the "
        "global batch by the ranks and the micro-batch",
    ),
    "not_serializable": Signature(
        rf"{_ENDS}TypeError: Object of type (?P<type>\w+) is not JSON serializable",
        cause="a {type} cannot be written as JSON",
        remedy="convert it before it is written at {where}: int(), float(), str(), tensor.tolist()",
    ),
    "misconfigured": Signature(
        rf"{_ENDS}(?:Misconfiguration|Config\w*|Validation)(?:Exception|Error): (?P<words>.+)$",
        cause="a library refuses the configuration: {words}",
        remedy="change the setting that it names; it is passed at {where}",
    ),
    "refused": Signature(
        rf"{_ENDS}(?:Value|Type|Assertion|NotImplemented|Import|Environment|Attribute|OS)Error: (?P<words>"
        rf"(?!\{{)(?=.*\b(?:[Pp]lease|"
        r"[Yy]ou (?:should|must|need|can(?:no|')t|are|did(?:n't| not))|(?:must|should|needs? to|has to) be|[Mm]ust |[S"
        r"s]hould |[Uu]se |[Tt]ry |"
        r"[Ss]et |install|upgrade|instead|not (?:supported|implemented|allowed|compatible)|only suppor"
        r"t\w*|[Rr]equires?|"
        r"[Ee]xpected|incompatible|too (?:small|large|short|long)|[Ii]nvalid|[Uu]nknown|not (?:found|i"
        r"n\b|exist))).{12,})$",
        rf"{_ENDS}RuntimeError: (?P<words>(?=.*\b(?:[Pp]lease|[Yy]ou (?:should|must|need)|[Tt]ry |instead\b|"
        r"not (?:supported|compatible|installed)|only (?:supported|valid))).{12,})$",
        rf"{_ENDS}(?:Value|Assertion|NotImplemented|Runtime)Error: (?P<words>(?=.*\b(?:(?:does|do|did) not (?:support|"
        r"accept|implement|allow|provide)|(?:is|are) (?:only|not) (?:valid|supported|accepted|applicable|configured)|"
        r"cannot (?:both |all |be |specify|use|set|handle|resize|create)|mutually exclusive|(?:is|are) necessary|"
        r"[Nn]o \S+(?: \S+)? (?:configured|provided|given|passed|specified)|[Uu]nsupported|[Uu]ndefined|"
        r"[Uu]nrecognized|already exists|yet supported|only (?:accepts?|valid|one))\b).{12,})$",
        cause="the program rejected it: {words}",
        remedy="follow the message; it was raised in a call from {where}",
    ),
    "check_failed": Signature(
        rf"{_ENDS}AssertionError:? <- assert ?(?P<words>.+)$",
        rf"{_ENDS}AssertionError:\s+(?P<words>\S+ \S.*?)(?: <- .*)?$",
        cause="a check failed at {raised}: {words}",
        remedy="print both sides of the check; in a package's code it is a condition on your settings, data or "
        "versions",
    ),
    "led_to": Signature(
        rf"{_ENDS}\w*(?:Error|Exception): (?P<words>.*?) <- raise\b.* from (?:e|ex|exc|err|error|exception)$",
        cause="this exception was caused by an earlier one: {words}",
        remedy="the earlier one is above `The above exception was the direct cause` in the log; raised at {raised}",
    ),
    "stopped": Signature(
        rf"{_ENDS}\w+:\s+(?P<words>\S+ \S.*?)(?: <- .*)?$",
        rf"{_ENDS}\w+:\s+(?P<words>\S+ \S+ \S.*) <- raise\b.*$",
        cause="the code at {raised} stopped with this message: {words}",
        remedy="look at the condition above that line: it compares your settings or data with what the code can do",
    ),
}

IN_ITS_OWN_WORDS = (EXPLANATIONS["check_failed"], EXPLANATIONS["stopped"])
"""Those that only repeat what the exception says."""


# docs/decisions/diagnosis.md: An unknown exception is explained, but the explanation is not taken for its cause
def explanation(exception: str, source: str = "", *, installed: bool = True) -> tuple[Signature, re.Match[str]] | None:
    """What the line that names an exception means, and that of the code which raised it; None: nothing in general.

    `installed` is whether a package raised it: a class of one's own may lack what its base had in another version.
    """
    texts = (exception, f"{exception.rstrip(': ')} <- {source}") if source else (exception,)
    matches = (
        (signature, pattern.search(text))
        for signature in EXPLANATIONS.values()
        if installed or signature is not EXPLANATIONS["own_attribute"]
        for text in texts
        for pattern in signature.patterns
    )
    return next(((signature, match) for signature, match in matches if match), None)
