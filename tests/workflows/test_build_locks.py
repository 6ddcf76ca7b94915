"""Locks of builds that ended without a word: removed while a launch starts, and only if nobody holds them."""

from pathlib import Path

import pytest

from trainwiz.message import Message
from trainwiz.workflows.launch.build_locks import Watch


@pytest.fixture
def lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    (tmp_path / "op").mkdir()
    (tmp_path / "op" / "lock").touch()
    return tmp_path / "op" / "lock"


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
    assert [str(message) for message in said] == [f"removed a build lock that no process holds: {lock}"]
