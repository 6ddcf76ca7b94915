"""The training data."""

from __future__ import annotations

from trainwiz.diagnose.signature import known
from trainwiz.message import say

SIGNATURES = (
    known(
        "malformed_data",
        r"^(?:\[rank\d+\]: )?(?P<place>.+:\d+): (?:not a JSON object with |neither messages nor instruction)",
        r"json\.decoder\.JSONDecodeError: (?P<place>.+)$",
        r"UnicodeDecodeError: (?P<place>.+)$",
        r"pyarrow\.lib\.ArrowInvalid: (?P<place>.+)$",
        r"pandas\.errors\.ParserError: (?P<place>.+)$",
        cause=say("the data cannot be read: {place}"),
        remedy=say("mend or drop that line; a .jsonl file holds one JSON object per line, in UTF-8"),
    ),
    known(
        "no_data",
        r"(?P<source>\S+): no (?:text to train on|pictures; they belong)",
        r"the data to (?:train|evaluate) on holds no sample(?P<source>)",
        r"num_samples should be a positive integer value, but got num_samples=0(?P<source>)",
        r"ValueError: (?P<source>)Instruction \"train\" corresponds to no data",
        cause=say("there is nothing to train on {source}"),
        remedy=say("look into data.train: is it the right folder, are there .txt or .jsonl files with text?"),
    ),
    known(
        "pad_token",
        r"tokenizer does not have a padding token",
        r"Cannot handle batch sizes > 1 if no padding token is defined",
        cause=say("the tokenizer has no padding token, and a batch needs one"),
        remedy=say("tokenizer.pad_token = tokenizer.eos_token"),
    ),
    known(
        "loader_timeout",
        r"DataLoader timed out after (?P<seconds>\d+) seconds",
        cause=say("the data loader gave nothing for {seconds} s"),
        remedy=say("data.num_workers 0 shows where it hangs: slow storage, a lock, a request without a time limit"),
        passing=None,
    ),
)
