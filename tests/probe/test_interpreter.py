"""The training interpreter as seen from a child process: real, missing, broken, and with a made-up torch."""

import ast
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from trainwiz.probe import interpreter

TORCH = """
__version__ = "2.9.9+cu126"
class version:
    cuda = "12.6"
class _C:
    @staticmethod
    def _cuda_getArchFlags():
        return "sm_70 sm_80"
class distributed:
    is_available = is_nccl_available = is_gloo_available = staticmethod(lambda: True)
    is_mpi_available = staticmethod(lambda: False)
class cuda:
    class nccl:
        version = staticmethod(lambda: (2, 21, 5))
    device_count = staticmethod(lambda: 2)
    @staticmethod
    def init():
        {init}
    get_device_capability = staticmethod(lambda i: ((8, 9), {weakest})[i])
"""


@pytest.fixture
def fake_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """Puts a torch of the given source before the real one."""

    def install(source: str) -> None:
        folder = tmp_path / "site" / "torch"
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text(source)
        monkeypatch.setenv("PYTHONPATH", str(folder.parent))

    return install


def test_this_environment_is_described() -> None:
    found = interpreter.start(sys.executable).result()
    assert found.error is None
    assert found.python == sys.executable
    assert found.python_version == ".".join(map(str, sys.version_info[:3]))
    assert found.version("torch")
    assert found.version("accelerate")
    assert found.version("no-such-package") is None
    assert "gloo" in found.backends


def test_torch_stays_in_the_child() -> None:
    # In a process of its own: other tests of this one may have imported torch.
    ask = "interpreter.start(sys.executable).result().version('torch')"
    program = f"import sys; from trainwiz.probe import interpreter; assert {ask}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=180)


def test_gpus_by_torch(fake_torch) -> None:  # type: ignore[no-untyped-def]
    fake_torch(TORCH.format(init="pass", weakest="(8, 0)"))
    found = interpreter.start(sys.executable).result()
    assert (found.version("torch"), found.cuda_build, found.nccl_version) == ("2.9.9+cu126", "12.6", "2.21.5")
    assert (found.torch_gpus, found.bf16, found.fp8) == (2, True, False)
    assert found.arch_list == ("sm_70", "sm_80")
    assert found.backends == ("nccl", "gloo")


def test_the_weakest_gpu_decides(fake_torch) -> None:  # type: ignore[no-untyped-def]
    fake_torch(TORCH.format(init="pass", weakest="(7, 5)"))
    assert interpreter.start(sys.executable).result().bf16 is False


def test_gpus_that_torch_cannot_use(fake_torch) -> None:  # type: ignore[no-untyped-def]
    fake_torch(TORCH.format(init="raise RuntimeError('The NVIDIA driver is too old\\nmore')", weakest="(8, 0)"))
    found = interpreter.start(sys.executable).result()
    assert (found.torch_gpus, found.cuda_error, found.error) == (0, "The NVIDIA driver is too old", None)


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("raise OSError('libcudart.so.12: cannot open shared object file')", "OSError: libcudart.so.12"),
        ("import no_such_module", "No module named 'no_such_module'"),
        ("raise SystemExit(4)", "SystemExit: 4"),
        ("import os, sys; sys.stderr.write('Fatal\\n'); sys.stderr.flush(); os.kill(os.getpid(), 11)", "Fatal"),
        ("import os; os._exit(0)", "exit code 0"),
    ],
)
def test_a_broken_torch_is_an_error_not_a_crash(fake_torch, source: str, error: str) -> None:  # type: ignore[no-untyped-def]
    fake_torch(source)
    found = interpreter.start(sys.executable).result()
    assert found.error
    assert error in found.error


def test_a_torch_that_talks_does_not_disturb(fake_torch) -> None:  # type: ignore[no-untyped-def]
    fake_torch("print('hello ', end='')\n" + TORCH.format(init="pass", weakest="(9, 0)"))
    assert interpreter.start(sys.executable).result().fp8 is True


def test_a_torch_that_hangs_is_given_up(fake_torch) -> None:  # type: ignore[no-untyped-def]
    fake_torch("import time; time.sleep(600)")
    assert interpreter.start(sys.executable).result(timeout=1).error == "no answer within 1 s"


@pytest.mark.parametrize("path", ["/no/such/python", "/etc/passwd", "/tmp", "", "true"])
def test_no_python_at_all(path: str) -> None:
    found = interpreter.start(path).result(20)
    assert found.error
    assert found.packages == {}


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment without torch."""
    folder = tmp_path_factory.mktemp("bare") / "venv"
    venv.create(folder, symlinks=True, with_pip=False)
    return folder


def test_an_environment_without_torch(bare: Path) -> None:
    found = interpreter.start(str(bare / "bin/python")).result()
    assert found.packages["torch"] is None
    assert found.error == "No module named 'torch'"
    assert found.python == str(bare / "bin/python"), "the link is the environment; it must not be resolved"


def test_a_name_is_looked_up_on_path(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{bare / 'bin'}:{os.environ['PATH']}")
    assert interpreter.located("python") == str(bare / "bin/python")


def test_the_cache_key_follows_what_is_installed(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = str(bare / "bin/python")
    key = interpreter.cache_key(python)
    assert key
    assert interpreter.cache_key(python) == key
    (site,) = bare.glob("lib/python3*/site-packages")
    (site / "torch-3.0.dist-info").mkdir()
    upgraded = interpreter.cache_key(python)
    assert upgraded != key
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert interpreter.cache_key(python) != upgraded
    assert interpreter.cache_key(sys.executable) not in (key, upgraded)


def test_a_wrapper_has_no_cache_key(tmp_path: Path, bare: Path) -> None:
    wrapper = tmp_path / "bin" / "python"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\nexec {bare}/bin/python "$@"\n')
    wrapper.chmod(0o755)
    (tmp_path / "lib/python3.11/site-packages").mkdir(parents=True)
    assert interpreter.cache_key(str(wrapper)) == ""
    assert interpreter.start(str(wrapper)).result().python_version
    assert interpreter.cache_key("/no/such/python") == ""


def test_the_child_programs_run_on_python_3_8() -> None:
    programs = list((Path(interpreter.__file__).parent / "inside").glob("*.py"))
    assert len(programs) >= 3
    for file in programs:
        tree = ast.parse(file.read_text(), feature_version=(3, 8))
        assert any(isinstance(n, ast.ImportFrom) and n.module == "__future__" for n in tree.body) or len(tree.body) == 1
