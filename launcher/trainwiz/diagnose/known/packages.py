"""Python packages, and downloads from the hub."""

from __future__ import annotations

from trainwiz.diagnose.signature import known
from trainwiz.message import say

TIER = 2
SIGNATURES = (
    known(
        "shadowed_module",
        r"partially initialized module '(?P<module>[\w.]+)'",
        r"No module named '[\w.]+'; '(?P<module>\w+)' is not a package",
        r"module '(?P<module>\w+)' has no attribute '\w+' \(consider renaming ",
        r"AttributeError: module '(?P<module>calendar|code|copy|email|enum|inspect|json|logging|math|numbers|operator|"
        r"platform|profile|queue|random|secrets|select|signal|statistics|string|time|token|tokenize|types)' has no ",
        r"cannot import name '\w+' from '(?P<module>\w+)' \(unknown location\)",
        cause=say(
            "{module} is taken from a file or folder of yours with a package's name, or imports itself in a circle"
        ),
        remedy=say(
            "python -c 'import {module}; print({module}.__file__)' shows which file is taken; rename it where it is "
            "yours, and remove its __pycache__"
        ),
    ),
    known(
        "own_import",
        r"ImportError: cannot import name '(?P<name>\w+)' from '(?P<module>[\w.]+)' "
        r"\((?P<file>(?!\S*(?:-packages|/python3[\d.]*)/)/[^)]+)\)",
        cause=say("{file} has no {name}: a slip in a file of yours, or it takes the place of a package {module}"),
        remedy=say("correct the name there, or rename {file} if the package {module} was meant"),
    ),
    known(
        "hub_gated",
        r"GatedRepoError",
        r"You are trying to access a gated repo",
        r"Access to model \S+ is restricted",
        cause=say("the model is gated: its owner must let you in"),
        remedy=say("ask for access on its page, then `hf auth login`, or HF_TOKEN=… trainwiz launch"),
    ),
    known(
        "hub_missing",
        r"is not a local folder and is not a valid model identifier",
        r"RepositoryNotFoundError|DatasetNotFoundError",
        r"HFValidationError",
        cause=say("neither a folder nor a repository on the hub has this name (or it is private)"),
        remedy=say("check the spelling; a private one needs `hf auth login`; a folder needs its path from here"),
    ),
    known(
        "hub_busy",
        r"(?P<problem>429 (?:Client Error: )?Too Many Requests|HTTP Error 429|50[0234] Server Error: [\w -]+)",
        cause=say("the server does not serve for now: {problem}"),
        remedy=say(
            "wait and launch again; `hf auth login` raises the hub's limit; hf download NAME before the launch spares "
            "the ranks from asking"
        ),
        transient=True,
    ),
    known(
        "certificate",
        r"CERTIFICATE_VERIFY_FAILED",
        cause=say("a server's certificate is not trusted here: mostly a proxy on the way signs with its own"),
        remedy=say("REQUESTS_CA_BUNDLE=FILE SSL_CERT_FILE=FILE trainwiz launch, with the certificates of your network"),
    ),
    known(
        "hub_unreachable",
        r"couldn't connect to '(?P<hub>[^']+)'",
        r"We couldn't connect to (?P<hub>\S+) to load",
        r"(?:OfflineModeIsEnabled|LocalEntryNotFoundError)(?P<hub>)",
        r"Max retries exceeded with url: .*(?P<hub>huggingface)",
        r"HTTPSConnectionPool\(host='(?P<hub>[^']*huggingface\.co)', port=\d+\): (?:Max retries|Read timed out)",
        r"ConnectionError: Couldn't reach '?(?P<hub>[^\s']+)",
        cause=say("the hub could not be reached, and the files are not in the cache {hub}"),
        remedy=say(
            "download them where there is a network: hf download NAME; HF_ENDPOINT sets a mirror, HF_HUB_OFFLINE=0 "
            "allows the network, HF_HOME the cache"
        ),
        transient=None,
    ),
    known(
        "wandb_login",
        r"api_key not configured \(no-tty\)",
        r"wandb\.errors\.errors\.(?:UsageError|AuthenticationError)",
        cause=say("Weights & Biases has no key here"),
        remedy=say("wandb login, or WANDB_MODE=offline trainwiz launch, or tracking.log_with none"),
    ),
    known(
        "wandb_server",
        r"wandb\.errors(?:\.errors)?\.CommError: (?P<problem>.+)$",
        cause=say("Weights & Biases could not be reached, or refused: {problem}"),
        remedy=say("WANDB_MODE=offline trainwiz launch, then `wandb sync`; check the project's and the team's name"),
        transient=None,
    ),
    known(
        "remote_code",
        r"contains custom code which must be executed|Please pass the argument `trust_remote_code=True`",
        cause=say("the model or data set brings code of its own, which is not run unless told to"),
        remedy=say("read that code, then give trust_remote_code=True where it is loaded"),
    ),
    known(
        "hub_file",
        r"no file named .+? found in directory (?P<place>\S+?)\.?$",
        r"Entry Not Found for url: (?P<place>\S+?)\.?$",
        r"does not appear to have a file named (?P<place>\S+?)\.?(?: |$)",
        cause=say("the model's folder or repository lacks a file: {place}"),
        remedy=say(
            "is it the folder that save_pretrained or trainwiz export wrote? a folder with adapter_config.json is an "
            "adapter, which is loaded on its base model"
        ),
    ),
    known(
        "tokenizer_unreadable",
        r"data did not match any variant of untagged enum",
        r"Couldn't instantiate the backend tokenizer",
        cause=say("these versions cannot read the tokenizer's files, or a package for them is missing"),
        remedy=say("pip install --upgrade transformers tokenizers sentencepiece tiktoken protobuf"),
    ),
    known(
        "dataset_script",
        r"Dataset scripts are no longer supported, but found (?P<script>\S+)",
        cause=say("the data set is a program ({script}), which this version of datasets does not run any more"),
        remedy=say(
            "load_dataset(NAME, revision='refs/convert/parquet') where the hub has converted it, or "
            "pip install 'datasets<4'"
        ),
    ),
    known(
        "protobuf",
        r"Descriptors cannot (?:not )?be created directly",
        cause=say("a package's protobuf code is older than the protobuf that is installed"),
        remedy=say("pip install 'protobuf<3.21', or PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION=python trainwiz launch"),
    ),
    known(
        "package_version",
        r"ImportError: (?P<package>[\w.-]+[<>=!~]+[\w.]+)\S* is required for a normal functioning of this module",
        r"requires (?:the latest version of )?`?(?P<package>[\w-]+(?:[<>=!~]+[\w.]+)?)`?: .*`pip install",
        r"require users to upgrade (?P<package>torch) to at least",
        cause=say("{package} is needed, and what is installed is none or too old"),
        remedy=say("pip install --upgrade '{package}' with the training's python"),
    ),
    known(
        "unknown_architecture",
        r"has model type `(?P<type>[^`]+)` but Transformers does not recognize this architecture",
        cause=say("this transformers does not know models of the type {type}"),
        remedy=say("pip install --upgrade transformers where the training runs"),
    ),
    known(
        "wrong_version",
        r"ImportError: cannot import name '(?P<name>\w+)' from '(?P<package>\w+)",
        r"AttributeError: module '(?P<package>\w+)[\w.]*' has no attribute '(?P<name>\w+)'",
        r"TypeError: (?P<package>\w+)\.__init__\(\) got an unexpected keyword argument '(?P<name>\w+)'",
        cause=say("{package} has no {name}: the code was written for another version of it, or has a slip"),
        remedy=say("pip install -r requirements.txt, or the version that the code names; pip show PACKAGE says yours"),
    ),
    known(
        "not_fetched",
        r"urllib\.error\.URLError: <urlopen error (?P<problem>.+)>",
        r"urllib\.error\.HTTPError: (?P<problem>.+)$",
        r"requests\.exceptions\.(?:ConnectionError|HTTPError|ConnectTimeout|ReadTimeout): (?P<problem>.+)$",
        cause=say("something could not be fetched from the network: {problem}"),
        remedy=say("fetch it where there is a network, before the training; `curl -I ADDRESS` tries it from here"),
        transient=None,
    ),
    known(
        "missing_package",
        r"ModuleNotFoundError: No module named '(?P<package>[\w.]+)'",
        r"python[\d.]*: No module named (?P<package>[\w.]+)",
        r"ImportError: \w+ requires the (?P<package>[\w.]+) library",
        r"the package (?:for )?(?P<package>\w+) (?:seems to be not|doesn't seem to be) installed",
        r"PackageNotFoundError: No package metadata was found for (?P<package>[\w.-]+)",
        cause=say("the package {package} is not installed where the training runs"),
        remedy=say(
            "pip install -r requirements.txt with the training's python, or choose another with --python; a folder of "
            "your own is found with PYTHONPATH=FOLDER trainwiz launch"
        ),
    ),
)
