"""Hub, caches, locks and DeepSpeed's ops, looked at for real: local servers, real folders, live builders."""

import http.server
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from patience import patience

from trainwiz.probe import hub, library_caches, locks, ops, programs
from trainwiz.process.capture import Running


class Answering(http.server.BaseHTTPRequestHandler):
    status = 200
    asked: list[tuple[str, str | None]] = []  # noqa: RUF012 - shared on purpose: the server makes one of us per request

    def do_HEAD(self) -> None:
        self.asked.append((self.command, self.headers.get("Authorization")))
        self.send_response(self.status)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with http.server.HTTPServer(("127.0.0.1", 0), Answering) as httpd:
        thread = threading.Thread(target=httpd.serve_forever, daemon=True)
        thread.start()
        Answering.asked.clear()
        yield f"http://127.0.0.1:{httpd.server_port}"
        httpd.shutdown()
        thread.join(5)
        Answering.status = 200


@pytest.mark.parametrize(("status", "reachable"), [(200, True), (404, True), (405, True), (503, False)])
def test_a_hub_that_speaks(server: str, status: int, reachable: bool) -> None:
    Answering.status = status
    found = hub.look({"HF_ENDPOINT": server, "HF_TOKEN": "hf_secret"}, seconds=60)
    assert (found.endpoint, found.reachable) == (server, reachable)
    assert Answering.asked == [("HEAD", None)], "no token is sent"


def test_a_password_of_the_hub_is_neither_sent_nor_shown(server: str) -> None:
    found = hub.look({"HF_ENDPOINT": server.replace("://", "://anna:hunter22@")}, seconds=60)
    assert (found.reachable, found.detail, Answering.asked) == (True, "", [("HEAD", None)])


def test_a_hub_that_is_not_there() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        found = hub.look({"HF_ENDPOINT": f"http://127.0.0.1:{unused.getsockname()[1]}"}, seconds=60)
    assert found.reachable is False
    assert "refused" in found.detail


def test_a_hub_that_never_answers_is_given_up() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        begin = time.monotonic()
        found = hub.look({"HF_ENDPOINT": f"http://127.0.0.1:{silent.getsockname()[1]}"}, seconds=0.5)
    assert found.reachable is False
    assert found.detail
    assert time.monotonic() - begin < 60 * patience()


@pytest.mark.parametrize("endpoint", ["file:///etc/passwd", "nonsense", "http://", "http://[::1"])
def test_an_endpoint_that_is_no_address(endpoint: str) -> None:
    found = hub.look({"HF_ENDPOINT": endpoint})
    assert found.reachable is False
    assert found.detail


@pytest.mark.parametrize("variable", ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"])
def test_offline_asks_nobody(server: str, variable: str) -> None:
    found = hub.look({"HF_ENDPOINT": server, variable: "true"})
    assert (found.offline, found.reachable, Answering.asked) == (variable, None, [])
    assert hub.look({"HF_ENDPOINT": server, variable: "0"}, seconds=60).reachable


def test_caches_follow_their_variables(tmp_path: Path) -> None:
    (tmp_path / "a file").write_text("")
    environ = {"XDG_CACHE_HOME": str(tmp_path), "HF_HOME": str(tmp_path / "a file"), "TMPDIR": "/proc"}
    found = {cache.variable: cache for cache in library_caches.caches(environ)}
    assert {name: cache.writable for name, cache in found.items()} == {
        "XDG_CACHE_HOME": True,
        "HF_HOME": False,
        "TORCH_EXTENSIONS_DIR": True,
        "TMPDIR": False,
    }
    assert found["TORCH_EXTENSIONS_DIR"].path == str(tmp_path / "torch_extensions")
    assert found["XDG_CACHE_HOME"].free_bytes
    assert [file.name for file in tmp_path.iterdir()] == ["a file"], "looking creates nothing"


# locks


def lock(folder: Path, name: str) -> Path:
    file = folder / name / "lock"
    file.parent.mkdir(parents=True)
    file.write_text("")
    os.utime(file, (time.time() - 100, time.time() - 100))
    return file


def test_a_lock_without_a_builder_is_stale_wherever_torch_puts_it(tmp_path: Path) -> None:
    nested = lock(tmp_path / "torch_extensions", "py311_cpu/cpu_adam")
    assert locks.stale_locks({"XDG_CACHE_HOME": str(tmp_path)}) == (str(nested),)
    flat = lock(tmp_path / "elsewhere", "cpu_adam")
    assert locks.stale_locks({"TORCH_EXTENSIONS_DIR": str(tmp_path / "elsewhere")}) == (str(flat),)
    assert locks.stale_locks({"TORCH_EXTENSIONS_DIR": str(tmp_path / "none")}) == ()


def test_a_lock_that_a_builder_holds_is_not_stale(tmp_path: Path) -> None:
    held = lock(tmp_path, "cpu_adam")
    environ = {"TORCH_EXTENSIONS_DIR": str(tmp_path)}
    builder = Running([sys.executable, "-c", f"f = open({str(held)!r}); print('holding', flush=True); input()"])
    builder.cancel()
    assert locks.stale_locks(environ) == (str(held),)
    code = (
        f"import os, time; os.open({str(held)!r}, os.O_RDONLY); open({str(tmp_path / 'ready')!r}, 'w'); time.sleep(60)"
    )
    builder = Running([sys.executable, "-c", code])
    try:
        deadline = time.monotonic() + 90 * patience()
        while not (tmp_path / "ready").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        assert locks.stale_locks(environ) == ()
    finally:
        builder.cancel()
    assert locks.stale_locks(environ) == (str(held),)


def test_a_holder_is_found_by_the_file_and_beside_what_closes_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = lock(tmp_path / "home", "cpu_adam")
    (tmp_path / "elsewhere").mkdir()
    os.link(held, tmp_path / "elsewhere" / "lock")  # as the host sees a container's file
    descriptors = tmp_path / "root" / "proc" / "1" / "fd"
    descriptors.mkdir(parents=True)
    for number, target in (("0", "gone/lock"), ("9", "elsewhere/lock")):
        (descriptors / number).symlink_to(tmp_path / target)
    environ = {"TORCH_EXTENSIONS_DIR": str(tmp_path / "home")}
    assert locks.stale_since(0, environ, root=tmp_path / "root") == ()
    assert locks.stale_locks(environ, root=tmp_path / "root") == ()
    (descriptors / "9").unlink()
    assert locks.stale_locks(environ, root=tmp_path / "root") == (str(held),)
    monkeypatch.setattr(os, "geteuid", lambda: held.stat().st_uid + 1)
    assert locks.stale_since(0, environ)[0].shared, "its holder may be another user's"


def test_a_lock_of_this_moment_is_given_time(tmp_path: Path) -> None:
    os.utime(lock(tmp_path, "cpu_adam"))
    assert locks.stale_locks({"TORCH_EXTENSIONS_DIR": str(tmp_path)}) == ()


def test_a_lock_that_was_left_meanwhile_is_found_however_young(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "_is_contained", lambda _root: False)
    environ = {"TORCH_EXTENSIONS_DIR": str(tmp_path)}
    before = time.time() - 1
    young, old = tmp_path / "young" / "lock", lock(tmp_path, "old")
    young.parent.mkdir()
    with young.open("x"):
        assert locks.stale_since(before, environ) == ()  # its maker lives
    (left,) = locks.stale_since(before, environ)
    assert (left.path, left.inode, left.shared) == (young, young.stat().st_ino, False)
    assert {left.path for left in locks.stale_since(0, environ)} == {young, old}
    mounts = tmp_path / "root" / "proc" / "self" / "mountinfo"
    mounts.parent.mkdir(parents=True)
    device = young.stat().st_dev
    mounts.write_text(f"36 35 {os.major(device)}:{os.minor(device)} / / rw,noatime shared:1 - nfs4 server:/home rw\n")
    assert locks.stale_since(before, environ, root=tmp_path / "root")[0].shared


# DeepSpeed


def test_ops_of_the_real_deepspeed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = tmp_path / "py311_cpu" / "cpu_adam"
    built.mkdir(parents=True)
    (built / "cpu_adam.so").write_text("")
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    known, problem = ops.start(sys.executable).result()
    assert problem is None
    assert known
    found = {op.name: op for op in known}
    assert found["cpu_adam"].built
    assert found["cpu_adam"].compatible
    assert not found["cpu_adagrad"].built
    assert list(tmp_path.iterdir()) == [tmp_path / "py311_cpu"], "nothing was built"


def test_a_deepspeed_that_is_not_there_or_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "deepspeed").mkdir()
    (tmp_path / "deepspeed/__init__.py").write_text("raise RuntimeError('CUDA_HOME does not exist')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert ops.start(sys.executable).result() == (None, "RuntimeError: CUDA_HOME does not exist")
    found, problem = ops.start("/no/such/python").result()
    assert found is None
    assert problem
    assert "No such file" in problem


@pytest.mark.parametrize(
    ("program", "trace", "found"),
    [
        ("sbatch", None, ["slurm"]),
        ("kubectl", None, []),
        ("kubectl", ".kube/config", ["kubernetes"]),
        ("sky", None, []),
        ("sky", ".sky/state.db", ["skypilot"]),
    ],
)
def test_schedulers_that_a_person_has_set_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, trace: str | None, found: list[str]
) -> None:
    """kubectl is in many images that reach no cluster."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / program).touch(mode=0o755)
    if trace:
        (tmp_path / trace).parent.mkdir()
        (tmp_path / trace).touch()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert [each.name for each in programs.at_hand({})] == found
    assert [each.name for each in programs.at_hand({"KUBECONFIG": "cluster.yaml"})] in (found, ["kubernetes"])
