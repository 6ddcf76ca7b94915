"""Configurations that name classes and keys: registries, Hydra and OmegaConf, Lightning's command line."""

from __future__ import annotations

from trainwiz.diagnose.signature import Signature

TIER = 2
SIGNATURES = {
    "not_registered": Signature(
        r"(?<![\w.])(?P<name>[\w.]{1,100}) is not in the (?P<registry>[\w:]+) registry\b",
        r"No object named '(?P<name>[^'\n]+)' found in '(?P<registry>\w+)' registry",
        r"(?<![\w.])(?P<name>[\w.]{1,100}) is not registered in (?P<registry>[\w:]+)",
        cause="{name} is not known among the classes of {registry}: the module that defines it was not imported, or "
        "the configuration was written for another version",
        remedy="compare the spelling of the type in the configuration; import the module that defines the class before "
        "the model is built (custom_imports in OpenMMLab's files), and install the version of the package that the "
        "configuration is for; None means that a block has no type",
    ),
    "object_not_built": Signature(
        r"(?<!\w)(?P<error>\w{1,60}Error): ['\"]?class [`'](?P<name>\w+)[`'] in [\w/.]+\.py: (?P<problem>.+)$",
        r"(?:nException: |^)Error in call to target '(?P<name>[\w.]+)':\s*(?P<error>\w+)\((?P<problem>.+)\)",
        r"InstantiationException: Error locating target '(?P<name>[\w.]+)'(?P<error>)(?P<problem>)",
        cause="the configuration's {name} cannot be built: {error} {problem}",
        remedy="compare its block in the configuration with the arguments of the class: a KeyError names a setting "
        "that the block lacks, a TypeError one that the class does not take; where the class itself is not found, "
        "install its package or correct the path",
    ),
    "config_key": Signature(
        r"Key '(?P<key>[\w.-]+)' is not in struct",
        r"(?:ConfigAttributeError|ConfigKeyError|MissingMandatoryValue): (?:Missing key|Missing mandatory value:?) "
        r"(?P<key>[\w.-]+)",
        cause="the configuration has no key {key}, which the program reads or the command line sets",
        remedy="add it to the YAML, or on the command line with a plus sign: +{key}=…; if the file comes from a "
        "project, take the one of the installed version",
    ),
    "parser_key": Signature(
        r"error: Parser key \"(?P<key>[\w.]+)\":",
        r"No action for (?:destination )?key \"(?P<key>[\w.]+)\"",
        r"Key \"(?P<key>[\w.]+)\" not found in namespace",
        cause="jsonargparse, which reads Lightning's configuration and command line, does not accept the key {key}",
        remedy="the lines below it say why: a value of another type, a class_path that cannot be imported, an argument "
        "that the class does not have; JSONARGPARSE_DEBUG=1 shows the traceback; if the key is right, "
        "pip install --upgrade lightning 'jsonargparse[signatures]'",
    ),
    "launcher_arguments": Signature(
        r"^(?:usage: )?(?P<launcher>launch(?:er)?\.py|run\.py|torchrun|deepspeed|accelerate [^:\n]*launch): error: "
        r"\W{0,4}unrecognized arguments\W{0,4}: ?(?P<words>.+)$",
        r"^(?P<launcher>launch(?:er)?\.py|run\.py|torchrun|deepspeed|accelerate [^:\n]*launch): error: the following "
        r"arguments are required: (?P<words>(?:training_script|user_script)\b.*)$",
        cause="the launcher {launcher} read arguments that are not its own, or found no script: {words}",
        remedy="first the launcher's options, then the script, then the script's options: torchrun --nproc_per_node 2 "
        "train.py --data_path …; a line that breaks without a backslash loses what follows",
    ),
}
