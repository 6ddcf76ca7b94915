"""Secrets are hidden in what is shown and recorded, and nothing else is."""

import pytest
from plans import BASE, product

from trainwiz import cluster, command
from trainwiz import plan as plans
from trainwiz.record import redaction, tokens
from trainwiz.record.variables import RECORDED


def test_the_variables_of_a_cluster_are_recorded_but_for_secrets() -> None:
    given = {"SLURM_JOB_ID": "7", "SLURM_JWT": "abcdef", "MASTER_ADDR": "10.0.0.1", "JOB": "7"}
    kept = {"SLURM_JOB_ID": "7", "SLURM_JWT": "***", "MASTER_ADDR": "10.0.0.1"}
    assert redaction.recorded(given, cluster.prefixes()) == kept


# docs/decisions/launching.md: Variables are recorded by name; secrets are hidden by name, shape and value
@pytest.mark.parametrize("name", ["HF_BEARER", "NCCL_AUTH_STRING", "NCCL_TOMORROW", "SLURM_NEW", "ACCELERATE_MY_PASS"])
def test_of_a_variable_that_nobody_knows_only_the_name_is_recorded(name: str) -> None:
    assert redaction.recorded({name: "plain words"}, cluster.prefixes()) == {name: "***"}


def test_the_variables_of_others_are_not_recorded() -> None:
    assert redaction.recorded({"HOME": "/root", "HFX": "1", "MY_NCCL_DEBUG": "1"}, cluster.prefixes()) == {}


SHAPES = (
    "hf_abcdefghijklmnop",
    "sk-proj-abc_DEF-123456789",
    "sk-ant-api03-abcdefgh",
    "ghp_abcdefghijklmnopqrst",
    "github_pat_11ABCDEFG0abcdef",
    "glpat-abcdefgh1234",
    "glrt-abcdefgh1234",
    "hvs.CAESIabcdefgh1234",
    "shpat_0123456789abcdef0123456789abcdef",
    "sq0atp-abcdefgh1234",
    "eyJhcGlfYWRkcmVzcyI6Imh0dHBzOi8vYXBwIn0=",
    "hooks.slack.com/services/T01AB/B01CD/abcdefgh1234",
    "discord.com/api/webhooks/123456789012/abcdefgh1234",
    "open.feishu.cn/open-apis/bot/v2/hook/01234567-89ab-cdef",
    "xoxb-123456789012-abcdef",
    "AKIAABCDEFGHIJKLMNOP",
    "ASIAABCDEFGHIJKLMNOP",
    "AIza" + "b" * 35,
    "ya29.a0AfH6SMBxyzabcdef",
    "dapi" + "0a" * 16,
    "npm_abcdefghijklmnop",
    "nvapi-abcdefgh12345678",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl",
    "wandb_v1_AbCdEfGhIjKlMnOpQrSt",
    "0123456789abcdef0123456789abcdef01234567",
    "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA\n-----END RSA PRIVATE KEY-----",
)
AROUND = (
    "{}",
    "x {} y",
    "key={}",
    '{{"a": "{}"}}',
    "it's '{}'.",
    "https://example.org/{}",
    "\n{}\n",
    "--api={},",
    "ü{}ü",
    "\x1b[1;32m{}\x1b[0m",
    "\x1b[K{}",
    "'key:\\n{}'",
    '"\\u003d{}"',
    "'\\x1b[32m{}'",
    "https://example.org/?q=a%3D{}",
)


def test_where_columns_count_a_secret_keeps_its_length() -> None:
    line = 'API_KEY = "CANARYsaid1"; login("hf_abcdefghijklmnop"); get("https://anna:secret@host/x")'
    shown = tokens.starred(line)
    assert shown == 'API_KEY = "***********"; login("*******************"); get("https://***********@host/x")'


@pytest.mark.parametrize("secret", SHAPES)
def test_the_shape_of_a_token_is_hidden_wherever_it_stands(secret: str) -> None:
    for around in AROUND:
        assert secret not in redaction.text(around.format(secret)), around


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("Authorization: Bearer abc.def-123456", "Authorization: Bearer ***"),
        ("bearer abcdefghijklmnopqrstuvwxyz", "bearer ***"),
        ("Authorization: Basic dXNlcjpwYXNz", "Authorization: Basic ***"),
        ("token=hVbsFW85ZTCBY7WZq049Qz", "token=***"),
        ('"token": "hVbsFW85ZTCBY7WZq049Qz"', '"token": "***"'),
        ("wandb_key: 8R6o2nZZOHMBTE9Z", "wandb_key: ***"),
        ("redis://:hunter22@cache:6379/0", "redis://***@cache:6379/0"),
        ("postgres://me:12/ab@db/x", "postgres://***@db/x"),
        ("git+https://git.corp:8443/team/pkg.git@main", "git+https://git.corp:8443/team/pkg.git@main"),
        ("docker://registry.local:5000/team/train@sha256:0123", "docker://registry.local:5000/team/train@sha256:0123"),
        ("no file p/https:/me:hunter22@example.com/d.jsonl", "no file p/https:/***@example.com/d.jsonl"),
        ("postgres://me:p/a:ss@db/x", "postgres://***@db/x"),
        ("https://h/x?sig=abcdef%2F123&sv=2", "https://h/x?sig=***&sv=2"),
        ("password = 'correct horse'", "password = '*** horse'"),
        ('"api_key": "abcdef123",', '"api_key": "***",'),
        ("AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI", "AWS_SECRET_ACCESS_KEY=***"),
        ("https://1a2b3c4d5e6f7a8b9c0d@github.com/a/b", "https://***@github.com/a/b"),
        (
            "https://api.telegram.org/bot123456789:AAabcdefghijklmnopqrstuvwxyz0123456/x",
            "https://api.telegram.org/***/x",
        ),
        ("X-Api-Key: abcdef123", "X-Api-Key: ***"),
        ("Set-Cookie: session=abcdef123; Path=/", "Set-Cookie: session=***; Path=/"),
        ("machine h login me password hunter22", "machine h login me password ***"),
        ("MYSQL_PWD=hunter22", "MYSQL_PWD=***"),
        ("Bearer: abcdef123456", "Bearer: ***"),
        ("my api key: abcdef123456", "my api key: ***"),
        ("wandb: api_key abcdef1234567890", "wandb: api_key ***"),
        ("curl -s -u me:hunter22 https://h", "curl -s -u me:*** https://h"),
        ("tool --client-secret hunter22", "tool --client-secret ***"),
        ("id_token=abcdefgh12345678", "id_token=***"),
        ("export MY_TOKEN=abcdefgh12345678", "export MY_TOKEN=***"),
        ("Server=db;Pwd=hunter22;", "Server=db;Pwd=***;"),
        ("docker login -p hunter22 registry", "docker login -p *** registry"),
        ("oauth2:hunter22@gitlab.com", "oauth2:***"),
        ("ssh_pass=hunter22", "ssh_pass=***"),
        ("\x1b[32mBearer abc.def-123456", "\x1b[32mBearer ***"),
        ("'sent\\nauthorization: basic dXNlcjpwYXNz'", "'sent\\nauthorization: basic ***'"),
        ("\x1b[32mtoken=hVbsFW85ZTCBY7WZq049Qz", "\x1b[32mtoken=***"),
    ],
)
def test_what_follows_a_name_of_secrets_is_hidden(words: str, shown: str) -> None:
    assert redaction.text(words) == shown


@pytest.mark.parametrize(
    "words",
    [
        "tokens_per_second: 128000000, num_tokens=1234567",
        "pad_token: <|endoftext|>, eos_token_id=50256",
        "commit 0123456789abcdef0123456789abcdef01234567",
        "commit \x1b[33m0123456789abcdef0123456789abcdef01234567\x1b[m",
        "snapshots/0123456789abcdef0123456789abcdef01234567/model.safetensors",
        "git+https://github.com/a/b@0123456789abcdef0123456789abcdef01234567",
        "sha256 " + "0123456789abcdef" * 4,
        "the bearer of the token; basic tokenizer; risk-averse",
        "password: None, api_key=null, token: secret",
        "the api_key that wandb asks for; curl -o shape.tar https://h:443/x; a key concept",
        "http://127.0.0.1:29500/x, 10:30@node",
        "RuntimeError: [enforce fail at alloc_cpu.cpp:119] err == 0",
        "task-abcdefghijkl disk-usage-summary",
        "ssh://git@github.com/a/b, OLDPWD=/home/me/project, PWD=/home/me, cookie: none",
        "authorization: required; the robot, bottles, both",
        "forward_pass: 0.123456 s; --hub_token HUB_TOKEN, --password TEXT, --passphrase <words>, --secret --other",
        "pad_token: <|endoftext|>; loss per token 2.3456789012345678; next token the_model_predicts",
    ],
)
def test_ordinary_words_are_left_as_they_are(words: str) -> None:
    assert redaction.text(words) == words


def test_every_variable_that_trainwiz_adds_may_be_recorded() -> None:
    looked_at = 0
    for plan in product():
        if plan.machine.num_machines > 1:
            continue
        made = command.for_plan(plan, python="python", folder=".", arguments=(), port=29500)
        for name in {**made.environ, **{k: v for rank in made.ranks for k, v in rank.environ.items()}}:
            assert name in RECORDED, name
            looked_at += 1
    assert looked_at > 100


def test_no_key_of_a_plan_is_taken_for_a_secret() -> None:
    """What a script says of its settings is compared with the plan: a hidden one would differ."""
    changes = {"data.special_tokens": "eos_token=<|im_end|>", "data.added_tokens": "<tool>,<call>"}
    said = {key.rpartition(".")[2]: str(value) for key, value in {**plans.flat(BASE), **changes}.items()}
    assert redaction.settings(said) == said


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        (["--token=abcdef"], ["--token=***"]),
        (["--hub-token", "abcdef", "x"], ["--hub-token", "***", "x"]),
        (["--max_new_tokens=128", "--tokens", "5"], ["--max_new_tokens=128", "--tokens", "5"]),
        (["--verbose", "--password", "123456"], ["--verbose", "--password", "***"]),
        (["--password", "--token=abc"], ["--password", "***"]),
        (["https://u:p@host/x", "AKIAABCDEFGHIJKLMNOP"], ["https://***@host/x", "***"]),
        (["author=me", "token"], ["author=me", "token"]),
        (
            ["--added_tokens=<tool>,<call>", "--eos_token", "<end>"],
            ["--added_tokens=<tool>,<call>", "--eos_token", "<end>"],
        ),
    ],
)
def test_arguments_hide_secrets_only(argv: list[str], shown: list[str]) -> None:
    assert redaction.arguments(argv) == shown


def test_known_secrets_are_hidden_wherever_they_stand() -> None:
    known = redaction.known(
        ["--token=abcdefgh", "--text_key", "content"], {"WANDB_API_KEY": "abcdefgh-long", "A_TOKEN": "1"}
    )
    assert known == {"abcdefgh", "abcdefgh-long"}
    assert redaction.values({"a": ["x abcdefgh-long y", 3]}, known) == {"a": ["x *** y", 3]}


@pytest.mark.parametrize(
    ("argv", "secrets"),
    [
        (["--token=abcdefgh"], {"abcdefgh"}),
        (["--token", "abcdefgh", "ijklmnop"], {"abcdefgh"}),
        (["--token=a=b=c=d"], {"a=b=c=d"}),
        (["--token", "a=b=c=d"], {"a=b=c=d"}),
        (["--token", "abcdef"], {"abcdef"}),
        (["--token", "abcde"], set()),
        (["--name", "abcdefgh", "***"], set()),
        (["--tokens", "12345678"], set()),
        (["hf_abcdefghij"], {"hf_abcdefghij"}),
    ],
)
def test_secrets_of_a_command_line_are_known(argv: list[str], secrets: set[str]) -> None:
    assert redaction.known(argv, {}) == secrets


def test_a_secret_that_begins_with_another_is_hidden_whole() -> None:
    assert redaction.text("abcdef-1 abcdef", frozenset({"abcdef", "abcdef-1"})) == "*** ***"


def test_variables_are_hidden_by_name_and_by_shape() -> None:
    given = {"HF_TOKEN": "x", "MAX_TOKENS": "128", "PROXY": "http://me:pw@host", "HOME": "/root"}
    shown = {"HF_TOKEN": "***", "MAX_TOKENS": "128", "PROXY": "http://***@host", "HOME": "/root"}
    assert redaction.environment(given) == shown


def test_a_name_of_secrets_may_go_on_but_not_to_what_holds_them() -> None:
    names = ("TORCH_SECRET_X", "NCCL_MY_TOKEN", "GITHUB_TOKEN_RO", "DB_PASSWORD_2", "X_API_KEY_PROD")
    others = (
        "HF_TOKEN_PATH",
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        "MAX_TOKEN_LENGTH",
        "TOKENIZERS_PARALLELISM",
        "SECRET_NAME",
    )
    variables = {name: f"value-of-{name}" for name in (*names, *others)}
    assert redaction.known([], variables) == {variables[name] for name in names}


def test_numbers_and_their_kind_are_left_as_they_are() -> None:
    assert redaction.values([1, None, ("hf_abcdefghij",), {"a": True}]) == [1, None, ["***"], {"a": True}]


def test_the_working_directory_is_no_secret() -> None:
    """The shell's PWD is in every path that is printed."""
    assert redaction.known([], {"PWD": "/home/me/project", "MYSQL_PWD": "hunter2hunter2"}) == {"hunter2hunter2"}
