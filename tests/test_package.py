"""What people install: sdist, the wheel built from it, and that wheel at work in an environment of its own."""

import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.train


def done(*command: str, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "TRAINWIZ_", "COVERAGE"))}
    finished = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**kept, "TRAINWIZ_LANG": "en", **environ},
        timeout=300,
        check=False,
    )
    assert finished.returncode == 0, f"{command}\n{finished.stdout}\n{finished.stderr}"
    return finished


@dataclass(frozen=True)
class Built:
    """The two archives."""

    sdist: Path
    wheel: Path

    def packed(self) -> set[str]:
        """What the wheel holds."""
        with zipfile.ZipFile(self.wheel) as archive:
            return {name for name in archive.namelist() if not name.endswith("/")}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("dist")
    # Without further flags `build` makes the wheel from the sdist, so that the sdist must be complete.
    done(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT), cwd=folder)
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return Built(sdist, wheel)


def test_the_wheel_is_the_same_byte_for_byte_wherever_and_whenever_it_is_built(built: Built, tmp_path: Path) -> None:
    """In another folder, with other times, another umask and the files in another order."""
    copy = tmp_path / "elsewhere"
    copy.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "hatch_build.py"):
        shutil.copyfile(ROOT / name, copy / name)
    for name in ("train_templates", "templates", "launcher"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "*.mo"))
    for path in copy.rglob("*"):
        os.utime(path, (0, 0) if path.suffix == ".py" else None)
        path.chmod(0o700 if path.is_dir() else 0o600)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(copy)]
    done("sh", "-c", f"umask 077 && {shlex.join(command)}", cwd=tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    assert hashlib.sha256(wheel.read_bytes()).hexdigest() == hashlib.sha256(built.wheel.read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def environment(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel. Its dependencies are those of this one, found but not copied."""
    folder = tmp_path_factory.mktemp("elsewhere") / "env"
    done(sys.executable, "-m", "venv", "--without-pip", str(folder), cwd=folder.parent)
    python = str(folder / "bin" / "python")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python)
    done(*pip, "install", "--quiet", "--no-deps", "--no-index", str(built.wheel), cwd=folder.parent)
    (site,) = folder.glob("lib/python3*/site-packages")
    # A folder named in a .pth is searched, but its own .pth files are not read: the editable trainwiz stays unseen.
    paths = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (site / "dependencies.pth").write_text("".join(f"{path}\n" for path in sorted(paths)))
    return folder


def test_the_wheel_holds_all_that_is_needed_and_no_more(built: Built) -> None:
    packed = built.packed()
    for folder in ("templates", "train_templates"):
        ours = {
            f"trainwiz/{file.relative_to(ROOT)}"
            for file in (ROOT / folder).rglob("*")
            if file.is_file() and "__pycache__" not in file.parts
        }
        assert len(ours) > 2
        assert ours <= packed
    assert {"trainwiz/py.typed", "trainwiz/locale/zh_CN/LC_MESSAGES/trainwiz.mo", "trainwiz/__main__.py"} <= packed
    rest = {name for name in packed if not name.startswith("trainwiz/")}
    assert {name.partition("/")[0].partition("-")[0] for name in rest} == {"trainwiz"}
    assert not {name for name in packed if re.search(r"(^|/)tests?/|\.pyc$|\.git", name)}
    assert any(name.endswith("/licenses/LICENSE") for name in rest)


def test_the_sdist_holds_the_tests_and_no_leftovers(built: Built) -> None:
    with tarfile.open(built.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "Makefile", "constraints.txt", "README.md", "tests/test_package.py"} <= names
    assert {
        "benchmarks/startup.py",
        "hatch_build.py",
        "launcher/trainwiz/locale/zh_CN/LC_MESSAGES/trainwiz.mo",
    } <= names
    assert not {name for name in names if re.search(r"__pycache__|\.venv|\.git/|_cache/|\.hypothesis", name)}


def test_the_installed_wheel_makes_and_checks_a_project_outside_the_checkout(environment: Path) -> None:
    home = environment.parent
    trainwiz, own = str(environment / "bin" / "trainwiz"), {"HOME": str(home), "HF_HUB_OFFLINE": "1"}
    where = "import trainwiz, trainwiz.resources as r; print(trainwiz.__file__, r.templates(), r.train_templates())"
    used = done(str(environment / "bin" / "python"), "-c", where, cwd=home, **own).stdout.split()
    assert len(used) == 3
    assert all(Path(path).is_relative_to(environment) for path in used), used

    flags = ("--set", "machine.device=cpu", "--num-processes", "2", "--strategy", "ddp")
    done(trainwiz, "init", "project", "--defaults", "--yes", *flags, cwd=home, **own)
    assert (home / "project" / "train.py").is_file()
    assert json.loads(done(trainwiz, "check", "project", "--json", cwd=home, **own).stdout)["errors"] == 0
    assert "RANK=1" in done(trainwiz, "launch", "project", "--dry-run", cwd=home, **own).stdout
    assert re.search("[\u4e00-\u9fff]", done(trainwiz, "--lang", "zh", "explain", "TW401", cwd=home, **own).stdout)


def test_both_lists_of_development_tools_are_the_same() -> None:
    group = re.search(r"^dev = \[\n(.*?)^\]", (ROOT / "pyproject.toml").read_text(), re.MULTILINE | re.DOTALL)
    assert group
    listed = (ROOT / "docs" / "requirements-dev.txt").read_text().splitlines()
    wanted = [line for line in listed if line and not line.startswith("#")]
    assert len(wanted) > 5
    assert sorted(re.findall(r'"(.+?)"', group[1])) == sorted(wanted)


def test_every_dependency_is_pinned() -> None:
    def name(requirement: str) -> str:
        return re.sub(r"[-_.]+", "-", re.split(r"[\s<>=!~;\[]", requirement, maxsplit=1)[0]).lower()

    pinned = {name(line) for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line}
    text = (ROOT / "pyproject.toml").read_text()
    listed = re.findall(
        r'^ *"([A-Za-z].*?)"', text[text.index("dependencies = [") : text.index("[project.scripts]")], re.M
    )
    listed += re.findall(r'"([a-z]+>=.*?)"', text[text.index("[project.optional-dependencies]") :])
    names = {name(requirement) for requirement in listed}
    assert {"torch", "typer", "transformers", "pytest"} <= names
    assert names <= pinned, f"not pinned: {names - pinned}"
