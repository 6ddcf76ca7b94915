"""What collectors, terminals and cutting do to a log does not change its cause."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from trainwiz.diagnose import log_text, of_log
from trainwiz.store import logs

LOGS = Path(__file__).parents[1] / "logs"
WORN = ("cuda_memory", "unused_parameters", "dtype", "deepspeed_batch", "missing_package", "nan_loss")
"""Logs with a traceback, and some without."""
_TIME = "2026-01-31T10:22:05.123456789Z"
_BAR = " 10%|█         | 1/10 [00:01<00:09,  1.00s/it]"


def _each(form: Callable[[str], str]) -> Callable[[str], str]:
    return lambda text: "".join(form(line) + "\n" for line in text.splitlines())


def _woven(text: str) -> str:
    """The log between the lines of a rank that still trains."""
    own = [f"[rank1]: {line}" for line in text.splitlines()]
    other = [f"[rank0]: step {n} loss {1 / (n + 1):.4f}" for n in range(len(own))]
    return "".join(f"{a}\n{b}\n" for a, b in zip(own, other, strict=True))


def _of_docker(line: str) -> str:
    return json.dumps({"log": f"{line}\n", "stream": "stderr", "time": _TIME})


SHAPES: dict[str, Callable[[str], str]] = {
    "rank in brackets": _each("[rank3]: {}".format),
    "torchrun --tee": _each("[default3]:{}".format),
    "srun --label": _each("3: {}".format),
    "mpirun --tag-output": _each("[1,3]<stderr>:{}".format),
    "ray": _each("(RayTrainWorker pid=7, ip=10.0.0.2) {}".format),
    "pdsh": _each("node-3: {}".format),
    "compose": _each("trainer-1  | {}".format),
    "kubectl --prefix": _each("[pod/job-worker-0/trainer] {}".format),
    "kubectl --timestamps": _each(f"{_TIME} {{}}".format),
    "CRI": _each(f"{_TIME} stderr F {{}}".format),
    "docker's JSON": _each(_of_docker),
    "JSON of a collector": _each(lambda line: json.dumps({"ts": 1.5, "level": "info", "message": line})),
    "quotation": _each("> {}".format),
    "colors": _each("\x1b[1;31m{}\x1b[0m".format),
    "CRLF": lambda text: text.replace("\n", "\r\n"),
    "fence": "```\n{}```\n".format,
    "progress before it": lambda text: _BAR + text,
    "progress redrawn": lambda text: "\r".join([_BAR] * 40) + text,
    "much before it": lambda text: "".join(f"step {n} loss 1.0\n" for n in range(400)) + text,
    "cut at the top": lambda text: text[text.find("\n", 0, len(text) // 2) + 1 :],
    "cut at the end": lambda text: text.rstrip("\n"),
    "woven with another rank": _woven,
}


@pytest.mark.parametrize("shape", SHAPES)
def test_the_shape_of_a_log_does_not_change_its_cause(shape: str) -> None:
    for name in WORN:
        text = SHAPES[shape]("".join((LOGS / f"{name}.log").read_text().splitlines(keepends=True)[1:]))
        found = of_log(text, log="a.log")
        assert found is not None, name
        assert (found.name, found.certainty) == (name, "shown"), name


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
def test_a_log_of_windows_is_read_in_its_encoding(tmp_path: Path, encoding: str) -> None:
    log = tmp_path / "a.log"
    for name in WORN:
        log.write_bytes((LOGS / f"{name}.log").read_text().replace("\n", "\r\n").encode(encoding))
        found = of_log(logs.read(log).lines(), log="a.log")
        assert found is not None, name
        assert found.name == name


def test_a_json_line_that_is_the_script_s_own_stays() -> None:
    text = '{"loss": 0.5, "step": 1}\n{"loss": 0.4, "step": 2}\n'
    assert [line.text for line in log_text.read(text)] == text.splitlines()


def test_a_name_that_two_ranks_wrote_at_once_is_one() -> None:
    found = of_log('Traceback (most recent call last):\n    "a": one["a"],\n\nKeyErrorKeyError: : \'a\'\n', log="x.log")
    assert found is not None
    assert found.exception == "KeyError: 'a'"
