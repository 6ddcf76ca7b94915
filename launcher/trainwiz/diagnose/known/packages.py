"""Python packages, and what the hub gives or keeps."""

from __future__ import annotations

from trainwiz.diagnose.signature import known
from trainwiz.message import say

SIGNATURES = (
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
        "hub_unreachable",
        r"couldn't connect to '(?P<hub>[^']+)'",
        r"We couldn't connect to (?P<hub>\S+) to load",
        r"(?:OfflineModeIsEnabled|LocalEntryNotFoundError)(?P<hub>)",
        r"Max retries exceeded with url: .*(?P<hub>huggingface)",
        r"ConnectionError: Couldn't reach '?(?P<hub>[^\s']+)",
        cause=say("the hub could not be reached, and the files are not in the cache {hub}"),
        remedy=say(
            "download them where there is a network: hf download NAME; HF_ENDPOINT sets a mirror, HF_HUB_OFFLINE=0 "
            "allows the network, HF_HOME the cache"
        ),
        passing=None,
    ),
    known(
        "wandb_login",
        r"api_key not configured \(no-tty\)",
        r"wandb\.errors\.errors\.(?:UsageError|AuthenticationError)",
        cause=say("Weights & Biases has no key here"),
        remedy=say("wandb login, or WANDB_MODE=offline trainwiz launch, or tracking.log_with none"),
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
        r"ImportError: (?P<name>[\w.-]+[<>=!~]+\S+) is required for a normal functioning of this (?P<package>module)",
        r"ImportError: Using .* requires `?(?P<name>accelerate|peft|bitsandbytes)(?P<package>)[>=]",
        cause=say("{package} has no {name}: the code was written for another version of it"),
        remedy=say("pip install -r requirements.txt, or the version that the code names; pip show PACKAGE says yours"),
    ),
    known(
        "not_fetched",
        r"urllib\.error\.URLError: <urlopen error (?P<problem>.+)>",
        r"urllib\.error\.HTTPError: (?P<problem>.+)$",
        r"requests\.exceptions\.(?:ConnectionError|HTTPError|ConnectTimeout|ReadTimeout): (?P<problem>.+)$",
        cause=say("something could not be fetched from the network: {problem}"),
        remedy=say("fetch it where there is a network, before the training; `curl -I ADDRESS` tries it from here"),
        passing=None,
    ),
    known(
        "missing_package",
        r"ModuleNotFoundError: No module named '(?P<package>[\w.]+)'",
        r"python[\d.]*: No module named (?P<package>[\w.]+)",
        r"ImportError: \w+ requires the (?P<package>[\w.]+) library",
        cause=say("the package {package} is not installed where the training runs"),
        remedy=say("pip install -r requirements.txt with the training's python, or choose another with --python"),
    ),
)
