"""Which rank did something else: dumps as PyTorch's flight recorder writes them (version 2.10, gloo and NCCL)."""

import json
import os
import pickle
from pathlib import Path

import pytest

from trainwiz.diagnose import flight_recorder
from trainwiz.diagnose.flight_recorder import compare, read
from trainwiz.store import recordings
from trainwiz.workflows import diagnose

LIBRARY = {"name": "all_reduce", "filename": "/venv/lib/python3.11/site-packages/torch/c10d.py", "line": 9}


def entry(number: int, operation: str = "all_reduce", *, done: bool = True, size: int = 4, **more: object) -> dict:
    return {
        "process_group": ("0", "default_pg"),
        "collective_seq_id": number,
        "profiling_name": f"nccl:{operation}",
        "input_sizes": [[size, 2]],
        "input_dtypes": ["Float"],
        "state": "completed" if done else "scheduled",
        "retired": done,
        "is_p2p": False,
        "frames": [LIBRARY, {"name": "step", "filename": "/home/u/train.py", "line": 10 + number}],
        **more,
    }


def dump(*entries: dict, world: int = 2) -> dict:
    ranks = str(list(range(world)))
    return {
        "version": "2.10",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": ranks}},
        "entries": [*entries],
    }


def compared(*dumps: dict):  # type: ignore[no-untyped-def]
    recordings = {rank: read(pickle.dumps(each)) for rank, each in enumerate(dumps)}
    assert None not in recordings.values()
    return compare(recordings)  # type: ignore[arg-type]


def test_a_rank_that_never_called_what_the_others_wait_in_is_named_with_both_places() -> None:
    ahead = dump(entry(1), entry(2, done=False), world=3)
    found = compared(ahead, dump(entry(1), world=3), ahead)
    assert (found.name, found.rank, found.certainty) == ("collective_missing", 1, "shown")
    assert "ranks 0, 2 wait in collective 2" in str(found.cause)
    assert "ranks 1 never called it" in str(found.cause)
    assert "train.py:12" in str(found.cause)
    assert "train.py:11" in str(found.cause)


@pytest.mark.parametrize(
    "other",
    [entry(2, "broadcast", done=False), entry(2, size=5, done=False), entry(2, done=False, input_dtypes=["Half"])],
)
def test_the_first_collective_that_differs_is_shown_with_the_rank_that_stands_alone(other: dict) -> None:
    same = dump(entry(1), entry(2, done=False), world=3)
    found = compared(same, same, dump(entry(1), other, world=3))
    assert (found.name, found.rank) == ("collective_mismatch", 2)
    assert "ranks 2 called" in str(found.cause)
    assert "ranks 0, 1 called all_reduce of 8 Float" in str(found.cause)


def test_a_rank_that_ended_before_the_others_failed_is_behind() -> None:
    found = compared(dump(entry(1), entry(2)), dump(entry(1)))
    assert (found.name, found.rank) == ("collective_missing", 1)
    assert "ranks 1 had ended, or were slower" in str(found.cause)


def test_sizes_that_may_differ_are_no_mismatch() -> None:
    assert compared(dump(entry(1, "all_to_all", size=3)), dump(entry(1, "all_to_all", size=7))) is None


def test_what_the_ring_has_lost_on_a_rank_is_not_compared() -> None:
    assert compared(dump(entry(1, "broadcast"), entry(2), entry(3)), dump(entry(2), entry(3))) is None


def test_ranks_that_agree_and_wait_point_to_the_network_unless_a_dump_is_missing() -> None:
    waiting = dump(entry(1), entry(2, done=False))
    found = compared(waiting, waiting)
    assert (found.name, found.rank) == ("collective_timeout", None)
    silent = compared(dump(entry(1, done=False), world=3), dump(entry(1, done=False), world=3))
    assert (silent.name, silent.rank) == ("collective_missing", 2)
    assert "no dump of ranks 2" in str(silent.cause)


def test_a_subgroup_concerns_its_members_only() -> None:
    config = {"0": {"ranks": "[0, 1]"}, "5": {"ranks": "[0]"}}
    own = entry(1, process_group=("5", "mine"))
    first, second = dump(entry(1), own), dump(entry(1))
    first["pg_config"] = second["pg_config"] = config
    assert compared(first, second) is None


def test_json_is_read_like_a_pickle() -> None:
    data = dump(entry(1), entry(2, done=False))
    assert read(json.dumps(data).encode()) == read(pickle.dumps(data))


NESTED: list[object] = []
for _ in range(64):  # as text, twice as long with each
    NESTED = [NESTED, NESTED]


class Evil:
    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, ("pwned",)


def test_nothing_in_a_pickle_is_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert read(pickle.dumps({"entries": [Evil()], "pg_config": {}})) is None
    assert not Path("pwned").exists()


def test_a_pickle_does_not_ask_for_more_memory_than_it_has_bytes() -> None:
    dumped = {"entries": [], "pg_config": {}}
    assert read(pickle.dumps(dumped, 5)) is not None
    assert read(pickle.dumps(dumped | {"size": bytearray(9)}, 5)) is None


@pytest.mark.parametrize(
    "data",
    [b"", b"\x80", b"\x80\x04garbage", b"{", b'{"a": 1}', b'{"entries": 3}', b'{"entries": [{}]}', b"{" * 9999]
    + [pickle.dumps(value) for value in ([], {"entries": {}}, {"entries": [5]}, dump(entry(1, input_sizes=[["x"]])))]
    + [b"\x80\x04Nr\xff\xff\xff\x7f."]  # a place in the memo of C's unpickler: 32 GiB
    + [pickle.dumps(dump(entry(10**6000))), pickle.dumps(dump(entry(1, process_group=[NESTED, ""])))],
)
def test_what_is_no_dump_is_left_to_the_readers_of_logs(data: bytes) -> None:
    assert read(data) is None


def test_a_folder_or_one_of_its_files_is_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank, data in enumerate((dump(entry(1), entry(2, done=False)), dump(entry(1)))):
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(data))
    (tmp_path / "other1").write_text("{}")
    for target in (tmp_path, tmp_path / "nccl_trace_rank_0"):
        assert diagnose.diagnose(str(target), json=True) == 0
        assert json.loads(capsys.readouterr().out)["rank"] == 1


def test_a_dump_that_is_too_large_does_not_blame_its_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [tmp_path / f"nccl_trace_rank_{rank}" for rank in range(3)]
    for file in files:
        file.write_bytes(pickle.dumps(dump(entry(1), entry(2, done=False), world=3)))
    files[2].write_bytes(files[2].read_bytes() + bytes(1000))
    monkeypatch.setattr(recordings, "_LARGEST", files[0].stat().st_size)
    assert diagnose.diagnose(str(tmp_path), json=True) == 0
    said = capsys.readouterr()
    assert "the files of ranks 2 are not dumps, or are too large" in said.err
    assert json.loads(said.out) is None
    files[2].unlink()
    assert diagnose.diagnose(str(tmp_path), json=True) == 0
    assert json.loads(capsys.readouterr().out)["rank"] == 2


def test_calls_say_where_they_are() -> None:
    call = flight_recorder.Call(operation="barrier", elements=(), dtypes=(), place="", done=True)
    assert str(call) == "barrier"
