"""Locks of builds that ended without a word: removed while a launch starts, and only if nobody holds them."""

import os
from pathlib import Path

import pytest

from trainwiz.message import Message
from trainwiz.probe import locks
from trainwiz.workflows.launch.build_locks import Watch, remove_stale_locks

IS_CONTAINED = locks._is_contained


@pytest.fixture
def lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    monkeypatch.setattr(locks, "_is_contained", lambda _root: False)
    (tmp_path / "op").mkdir()
    (tmp_path / "op" / "lock").touch()
    return tmp_path / "op" / "lock"


def test_another_machine_s_build_is_left_in_peace(lock: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "_is_shared", lambda _file, _root: True)
    said: list[Message] = []
    remove_stale_locks({}, 0.0, said.append)
    assert not said, "it was made a moment ago"
    remove_stale_locks({}, 1.0, said.append)
    assert "is left on a disk that other machines or containers may share" in str(said.pop()), "after a failure"
    os.utime(lock, (1, 1))
    remove_stale_locks({}, 0.0, said.append)
    assert "is left on a disk that other machines or containers may share" in str(said.pop())
    assert lock.exists()


@pytest.mark.parametrize(("kind", "shared"), [("ext4", True), ("overlay", False)])
def test_in_a_container_only_its_own_layer_is_seen_whole(kind: str, shared: bool, lock: Path, tmp_path: Path) -> None:
    """A process in another container, which nobody here sees, may be building on a disk that both have."""
    own, device = tmp_path / "root" / "proc" / "self", os.stat(lock).st_dev
    (own / "ns").mkdir(parents=True)
    (own / "ns" / "pid").touch()
    (own / "mountinfo").write_text(f"1 0 {os.major(device)}:{os.minor(device)} / / rw - {kind} /dev/x rw\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(locks, "_is_contained", IS_CONTAINED)
        (left,) = locks.stale_since(0.0, root=tmp_path / "root")
    assert left.shared is shared


def test_a_lock_is_looked_for_again_while_a_launch_waits(lock: Path) -> None:
    said: list[Message] = []
    now = [100.0]
    watch = Watch({}, said.append, clock=lambda: now[0])
    with lock.open():
        watch.look()
        assert lock.exists()
        assert not said
    now[0] += 5
    watch.look()
    assert lock.exists(), "looked a moment ago"
    now[0] += 6
    watch.look()
    assert not lock.exists()
    assert [str(message) for message in said] == [f"removed a build lock that no process owns: {lock}"]
