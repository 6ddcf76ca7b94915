"""Secrets are hidden in what is shown and recorded, and nothing else is."""

import pytest
from plans import product

from trainwiz import cluster, command
from trainwiz.record import redaction


def test_the_variables_of_a_cluster_are_recorded_but_for_secrets() -> None:
    given = {"SLURM_JOB_ID": "7", "SLURM_JWT": "abcdef", "MASTER_ADDR": "10.0.0.1", "JOB": "7"}
    kept = {"SLURM_JOB_ID": "7", "SLURM_JWT": "***", "MASTER_ADDR": "10.0.0.1"}
    assert redaction.recorded(given, cluster.prefixes()) == kept
    assert redaction.recorded({"SLURM_JOB_ID": "7"}) == {}


def test_every_variable_that_trainwiz_adds_may_be_recorded() -> None:
    looked_at = 0
    for plan in product():
        if plan.machine.num_machines > 1:
            continue
        made = command.for_plan(plan, python="python", folder=".", arguments=(), port=29500)
        for name in {**made.environ, **{k: v for rank in made.ranks for k, v in rank.environ.items()}}:
            assert redaction.RECORDED.fullmatch(name), name
            looked_at += 1
    assert looked_at > 100


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
    ],
)
def test_arguments_hide_secrets_only(argv: list[str], shown: list[str]) -> None:
    assert redaction.arguments(argv) == shown


def test_known_secrets_are_hidden_wherever_they_stand() -> None:
    known = redaction.known(["--token=abcdefgh", "--key", "v"], {"WANDB_API_KEY": "abcdefgh-long", "A_TOKEN": "1"})
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


def test_numbers_and_their_kind_are_left_as_they_are() -> None:
    assert redaction.values([1, None, ("hf_abcdefghij",), {"a": True}]) == [1, None, ["***"], {"a": True}]
