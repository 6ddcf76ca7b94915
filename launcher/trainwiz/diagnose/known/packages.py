"""Python packages, and downloads from the hub."""

from __future__ import annotations

from trainwiz.diagnose.signature import Signature

TIER = 2
SIGNATURES = {
    "shadowed_module": Signature(
        r"partially initialized module '(?P<module>[\w.]+)'",
        r"No module named '[\w.]+'; '(?P<module>\w+)' is not a package",
        r"module '(?P<module>\w+)' has no attribute '\w+' \(consider renaming ",
        r"AttributeError: module '(?P<module>calendar|code|copy|email|enum|inspect|json|logging|math|numbers|operator|"
        r"platform|profile|queue|random|secrets|select|signal|statistics|string|time|token|tokenize|types)' has no ",
        r"cannot import name '\w+' from '(?P<module>\w+)' \(unknown location\)",
        cause="{module} is a file or folder of yours that hides a package of the same name, or it is a circular import",
        remedy="to find the file, run python -c 'import {module}; print({module}.__file__)'; if it is yours, rename "
        "it and delete its __pycache__",
    ),
    "not_compiled": Signature(
        r"cannot import name '(?P<name>_C\w*|_ext|helpers_cpp|helpers(?=' from 'megatron)|"
        r"(?!(?:is|has|to|use|get|set|move|init)_)\w+_cuda(?:_ext)?)' from '(?P<package>[\w.]+)'",
        r"No module named '(?P<package>[\w.]+)\.(?P<name>_C\w*|_ext|helpers_cpp|"
        r"(?!(?:is|has|to|use|get|set|move|init)_)\w+_cuda(?:_ext)?)'",
        r"No module named '(?P<package>megatron[\w.]*)\.(?P<name>helpers)'",
        r"No module named '(?P<name>(?P<package>deepspeed)_\w+_cuda)'",
        r"No module named '(?P<name>(?P<package>amp|colossal|fused_layer_norm|flash_attn(?:_[23])?|syncbn|apex)"
        r"_(?:C|cuda))'",
        cause="{package} has a part in C++ or CUDA, {name}, that was not built",
        remedy="build it in its source folder: pip install --no-build-isolation -e . (Megatron: make in the "
        "datasets folder); or install the package's wheel for your torch",
    ),
    "relative_import": Signature(
        r"ImportError: attempted relative import (?P<problem>with no known parent package|beyond top-level package)",
        cause="a file with relative imports was started by its path, so Python does not know its package ({problem})",
        remedy="start it as a module, from the folder above the package: python -m PACKAGE.MODULE; torchrun and "
        "accelerate launch also accept -m",
    ),
    "no_user_name": Signature(
        r"getpwuid\(\): uid not found: (?P<uid>\d+)",
        cause="the user id {uid} has no name in this container, but a library needs one",
        remedy="set USER and LOGNAME to any name, and for torch.compile TORCHINDUCTOR_CACHE_DIR to a folder; or mount "
        "/etc/passwd into the container",
    ),
    "own_import": Signature(
        r"ImportError: cannot import name '(?P<name>\w+)' from '(?P<module>[\w.]+)' "
        r"\((?P<file>(?!\S*(?:-packages|/python3[\d.]*)/)/[^)]+)\)",
        cause="{file} does not define {name}: your file has a typo, or it hides the package {module}",
        remedy="correct the name, or rename {file} if you meant the package {module}",
    ),
    "hub_gated": Signature(
        r"GatedRepoError",
        r"You are trying to access a gated repo",
        r"Access to model \S+ is restricted",
        cause="the model is gated: its owner must grant you access",
        remedy="request access on the model's page, then run `hf auth login` or HF_TOKEN=… trainwiz launch",
    ),
    "hub_missing": Signature(
        r"OSError: Incorrect path_or_model_id",
        r"is not a local folder and is not a valid model identifier",
        r"OSError: Can't load (?:the )?(?:config\w*|model|feature extractor|image processor|weights) (?:for|of) '",
        r"RepositoryNotFoundError|DatasetNotFoundError",
        r"HFValidationError",
        cause="no folder and no repository on the hub has this name (or the repository is private)",
        remedy="check the spelling; for a private repository, run `hf auth login`; for a folder, give its path "
        "relative to the current folder",
    ),
    "hub_busy": Signature(
        r"(?P<problem>429 (?:Client Error: )?Too Many Requests|HTTP Error 429|50[0234] Server Error: [\w -]+)",
        cause="the server is temporarily unavailable: {problem}",
        remedy="wait and launch again; `hf auth login` raises the hub's limit; with hf download NAME before the "
        "launch, the ranks send no requests",
        transient=True,
    ),
    "certificate": Signature(
        r"CERTIFICATE_VERIFY_FAILED",
        cause="a server's certificate is not trusted; usually a proxy replaces it with its own",
        remedy="run: REQUESTS_CA_BUNDLE=FILE SSL_CERT_FILE=FILE trainwiz launch, where FILE has your network's "
        "certificates",
    ),
    "hub_unreachable": Signature(
        r"couldn't connect to '(?P<hub>[^']+)'",
        r"We couldn't connect to (?P<hub>\S+) to load",
        r"(?:OfflineModeIsEnabled|LocalEntryNotFoundError)(?P<hub>)",
        r"Max retries exceeded with url: .*(?P<hub>huggingface)",
        r"HTTPSConnectionPool\(host='(?P<hub>[^']*huggingface\.co)', port=\d+\): (?:Max retries|Read timed out)",
        r"ConnectionError: Couldn't reach '?(?P<hub>[^\s']+)",
        cause="the files are not in the cache, and there is no connection to the hub {hub}",
        remedy="download them on a machine with network access: hf download NAME; HF_ENDPOINT sets a mirror, "
        "HF_HUB_OFFLINE=0 allows network access, HF_HOME sets the cache",
        transient=None,
    ),
    "wandb_login": Signature(
        r"api_key not configured \(no-tty\)",
        r"wandb\.errors\.errors\.(?:UsageError|AuthenticationError)",
        cause="no Weights & Biases API key found",
        remedy="run wandb login or WANDB_MODE=offline trainwiz launch, or set tracking.log_with to none",
    ),
    "wandb_server": Signature(
        r"(?P<problem>Timed out waiting for wandb service to start)",
        r"mlflow\.exceptions\.MlflowException: (?P<problem>API request to .+)$",
        r"wandb\.errors(?:\.errors)?\.CommError: (?P<problem>.+)$",
        cause="Weights & Biases is unreachable or rejected the request: {problem}",
        remedy="run: WANDB_MODE=offline trainwiz launch, then `wandb sync`; check the names of the project and the "
        "team",
        transient=None,
    ),
    "cloud_refused": Signature(
        r"(?:NoCredentialsError|DefaultCredentialsError|TokenRetrievalError|PartialCredentialsError): (?P<problem>.+)$",
        r"ClientError: An error occurred \((?P<problem>(?:400|401|403|AccessDenied|InvalidAccessKeyId|ExpiredToken|"
        r"SignatureDoesNotMatch|InvalidToken)\)[^\n]*)",
        cause="the cloud storage denied access: {problem}",
        remedy="pass the credentials to every rank and container (AWS_ACCESS_KEY_ID, GOOGLE_APPLICATION_CREDENTIALS, "
        "or the "
        "pod's role), and try them there: aws s3 ls BUCKET",
    ),
    "remote_code": Signature(
        r"requires you to execute the \w+ file in that repo",
        r"contains custom code which must be executed|Please pass the argument `trust_remote_code=True`",
        cause="the model or dataset contains its own code, which does not run by default",
        remedy="read that code, then pass trust_remote_code=True where it is loaded",
    ),
    "hub_file": Signature(
        r"Can't find '?adapter_config\.json'? at '(?P<place>[^'\n]+)'",
        r"no file named .+? found in directory (?P<place>\S+?)\.?(?: |$)",
        r"Entry Not Found for url: (?P<place>\S+?)\.?$",
        r"does not appear to have a file named (?P<place>\S+?)\.?(?: |$)",
        cause="a file is missing from the model's folder or repository: {place}",
        remedy="check that the folder was written by save_pretrained or trainwiz export; a folder with "
        "adapter_config.json is an adapter and is loaded on its base model",
    ),
    # transformers then takes the file for tiktoken's, and asks for that package.
    "sentencepiece": Signature(
        r"Could not extract SentencePiece model from \S+ using sentencepiece library due to (?:No module|$)",
        r"`tiktoken` is required to read a `tiktoken` file",
        r"You need to have sentencepiece or tiktoken installed to convert a slow tokenizer",
        cause="the model has its tokenizer as tokenizer.model alone, which a package that is not installed must read",
        remedy="pip install sentencepiece protobuf; if the file is not SentencePiece's (Llama 3, Kimi): pip install "
        "tiktoken; or copy the tokenizer.json of the model into the folder",
    ),
    "tokenizer_unreadable": Signature(
        r"data did not match any variant of untagged enum",
        r"Couldn't instantiate the backend tokenizer",
        cause="the installed versions cannot read the tokenizer files, or a package is missing",
        remedy="pip install --upgrade transformers tokenizers sentencepiece tiktoken protobuf",
    ),
    "dataset_script": Signature(
        r"Dataset scripts are no longer supported, but found (?P<script>\S+)",
        cause="the dataset is a script ({script}), which this version of datasets no longer runs",
        remedy="use load_dataset(NAME, revision='refs/convert/parquet') if the hub has converted it, or pip install "
        "'datasets<4'",
    ),
    "protobuf": Signature(
        r"Descriptors cannot (?:not )?be created directly",
        cause="a package's protobuf code is older than the installed protobuf",
        remedy="pip install 'protobuf<3.21', or run: PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION=python trainwiz launch",
    ),
    "package_version": Signature(
        r"ImportError: (?P<package>[\w.-]+[<>=!~]+[\w.]+(?:,[<>=!~]+[\w.]+)*)\S* is required for a normal functioning "
        r"of "
        r"this module",
        r"requires (?:the latest version of )?`?(?P<package>[\w-]+(?:[<>=!~]+[\w.]+)?)`?: .*`pip install",
        r"require users to upgrade (?P<package>torch) to at least",
        r"(?:requires|needs) (?P<package>[A-Za-z][\w.-]*) (?:version )?(?:>=? ?)?\d[\w.]* or (?:higher"
        r"|later|above|newer)",
        cause="{package} is required, but another version of it is installed, or none",
        remedy="with the training interpreter, run: pip install --upgrade '{package}'",
    ),
    "unknown_architecture": Signature(
        r"^KeyError: '(?P<type>(?:qwen|llama|mistral|mixtral|gemma|phi|deepseek|glm|chatglm|internlm|baichuan|olmo|"
        r"granite|smol|gpt_oss|minicpm|cohere|falcon|ernie|kimi|minimax)[\w.-]*)'$",
        r"has model type `(?P<type>[^`]+)` but Transformers does not recognize this architecture",
        r"configuration_auto\.py\"[\s\S]{0,400}?\nKeyError: '(?P<type>[\w-]+)'",
        cause="the installed transformers does not support the model type {type}",
        remedy="in the training environment, run: pip install --upgrade transformers",
    ),
    "tokenizer_class": Signature(
        r"Tokenizer class (?P<type>\w+) does not exist or is not currently imported",
        cause="transformers has no tokenizer class {type}: it is in the model's own code, or in another version",
        remedy="if tokenizer_config.json has an auto_map, load it with trust_remote_code=True from a folder with "
        "all of the model's .py files; otherwise run: pip install --upgrade transformers",
    ),
    "model_folder_name": Signature(
        r"No module named 'transformers_modules\.(?P<name>[^']+)'",
        cause="transformers imports the model's own code by the name of its folder, but cannot find {name}: a dot "
        "in the name, or an incomplete copy in the cache",
        remedy="give the model's folder a name without dots (v2-0, not v2.0), delete "
        "~/.cache/huggingface/modules/transformers_modules, and start again; let one rank load it before the others",
    ),
    "setuptools_version": Signature(
        r"module 'distutils' has no attribute 'version'",
        cause="the installed setuptools is too new for this torch, whose TensorBoard writer asks for distutils.version",
        remedy="update torch, or with the training interpreter run: pip install 'setuptools<60'",
    ),
    "wrong_version": Signature(
        r"ImportError: cannot import name '(?P<name>\w+)' from '(?P<package>\w+)",
        r"AttributeError: module '(?P<package>\w+)[\w.]*' has no attribute '(?P<name>\w+)'",
        r"AttributeError: `?np\.(?P<name>\w+)`? was removed in the (?P<package>NumPy) 2",
        r"\b(?P<package>[A-Z]\w+)\.\w+\(\) got an unexpected keyword argument "
        r"'(?P<name>(?!keep_torch_compile)\w+)'",
        r"AttributeError: Can't get attribute '(?P<name>\w+)' on <module '(?P<package>(?!__main__)\w+)",
        r"^cannot import name '(?P<name>\w+)' from '(?P<package>\w+)",
        r"^module '(?P<package>\w+)[\w.]*' has no attribute '(?P<name>\w+)'\.?$",
        cause="{package} has no {name}: the code needs another version of the package, or has a typo",
        remedy="pip install -r requirements.txt, or install the version that the code needs; to see yours, run pip "
        "show PACKAGE",
    ),
    "hub_token": Signature(
        r"LocalTokenNotFoundError",
        r"401 Client Error: Unauthorized|Invalid (?:user token|credentials in Authorization header)",
        cause="the hub rejected the access token, or there is none",
        remedy="run `hf auth login` with a valid token, or unset HF_TOKEN if it is an old one",
    ),
    "not_fetched": Signature(
        r"(?:ChunkedEncodingError|ClientPayloadError|IncompleteRead|ProtocolError): (?P<problem>.+)$",
        r"(?P<problem>CAS service error ?: (?!.*No space left).+)$",
        r"urllib\.error\.URLError: <urlopen error (?P<problem>.+)>",
        r"urllib\.error\.HTTPError: (?P<problem>.+)$",
        r"HfHubHTTPError: (?P<problem>(?!401|403|404|429|5\d\d).+)$",
        r"(?P<problem>thrown while requesting (?:GET|HEAD) \S+)\s*$(?!(?:\n.*thrown while requesting.*)*\nRetrying)",
        r"httpx\.(?P<problem>(?:Connect|Read|Proxy|Pool|RemoteProtocol|Write)\w+: .+)$",
        r"^(?:fsspec\.exceptions\.)?(?P<problem>FSTimeoutError):?$",
        r"requests\.exceptions\.(?:ConnectionError|HTTPError|ConnectTimeout|ReadTimeout): (?P<problem>.+)$",
        cause="download failed: {problem}",
        remedy="download it before the training on a machine with network access; to test the connection from here, "
        "run `curl -I ADDRESS`",
        transient=None,
    ),
    "missing_module": Signature(
        r"No module named '(?P<package>\w+)\.(?P<module>[\w.]+)'",
        r"python[\d.]*: No module named (?P<package>\w+)\.(?P<module>[\w.]+)$",
        cause="{package} exists, but has no {module}: the code needs another version of it, or {package} is a "
        "folder of yours that hides the package",
        remedy="to see which it is, run python -c 'import {package}; print({package}.__path__)'; then install the "
        "version that the code needs",
    ),
    "cached_dataset": Signature(
        r"Loading a dataset cached in a LocalFileSystem is not supported",
        cause="the installed datasets does not support this fsspec version",
        remedy="pip install --upgrade datasets fsspec",
    ),
    "missing_package": Signature(
        r"requires (?P<package>[a-z][\w-]+) to be installed",
        r"ImportError: .*[Pp]lease install ['`](?P<package>[\w-]+)['`]",
        r"ModuleNotFoundError: No module named '(?P<package>\w+)'",
        r"python[\d.]*: No module named (?P<package>\w+)$",
        r"ImportError: No module named (?P<package>\w+)(?:\.\w+)*$",
        r"ImportError: \w+ requires the (?P<package>[\w.]+) library",
        r"ImportError: No (?P<package>[\w-]+) / ",
        r"^No module named '(?P<package>\w+)'$",
        r"requires the following packages that were not found in your environment: (?P<package>[\w-]+)",
        r"the package (?:for )?(?P<package>\w+) (?:seems to be not|doesn't seem to be) installed",
        r"PackageNotFoundError: No package metadata was found for (?P<package>[\w.-]+)",
        cause="the package {package} is not installed in the training environment",
        remedy="with the training interpreter, run: pip install -r requirements.txt; or choose another interpreter "
        "with --python; for a folder of your own: PYTHONPATH=FOLDER trainwiz launch",
    ),
}
