"""Wheels of what a bare GPU machine lacks, to be brought along: `python benchmarks/gpu/bring.py FOLDER`.

Run it where there is a network. FOLDER then has what trainwiz and the trainings of part a to c need beside torch,
accelerate and transformers, and FOLDER/colossalai what part d needs. Versions are those of the constraints, for Python
3.12 on x86-64. Of bitsandbytes only the library for one version of CUDA is kept. Ends with an error if all of it is
larger than 56 MiB (with the checkout it must stay below 64), or if something needs a package that would not be there.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 56 * 2**20
CUDA = "130"
"""CUDA 13.0, which the machine's torch is built for."""
THERE = (
    *("torch", "accelerate", "transformers", "triton", "numpy", "packaging", "psutil", "pyyaml", "huggingface-hub"),
    *("safetensors", "tokenizers", "tqdm", "typer", "rich", "jinja2"),
)
"""On the machine: the first three, and what these need."""
BEHIND = ("click", "filelock", "fsspec", "hf-xet", "certifi", "idna", "regex", "typing-extensions")
"""What those need in their turn."""
OWN = (
    *("pydantic", "pydantic-core", "annotated-types", "typing-inspection", "typing-extensions"),
    *("questionary", "prompt-toolkit", "wcwidth", "nvidia-ml-py"),
)
"""trainwiz's own beside those, and what they need."""
TRAINING = (
    *("peft", "bitsandbytes", "liger-kernel", "torchao"),
    *("deepspeed", "hjson", "einops", "msgpack", "ninja", "py-cpuinfo"),
)
COLOSSALAI = (
    *("colossalai", "transformers", "tokenizers", "huggingface_hub", "peft", "diffusers", "contexttimer", "fabric"),
    *("galore_torch", "rpyc", "plumbum", "invoke", "paramiko", "bcrypt", "PyNaCl", "Deprecated", "decorator"),
    *("lazy-importer", "importlib_metadata", "requests", "urllib3", "charset-normalizer"),
)
"""Beside what the machine has; versions of constraints-colossalai.txt."""
NEVER_IMPORTED = (
    *("fastapi", "uvicorn", "ray", "pre-commit", "google", "protobuf", "sentencepiece"),
    *("cffi", "cryptography", "wrapt", "zipp", "pillow"),
)
"""Declared by Colossal-AI and by what it needs, and imported by no training (tests/benchmarks/test_speed.py)."""
MACHINE = {"python_version": "3.12", "python_full_version": "3.12.0", "sys_platform": "linux", "extra": ""}
MACHINE |= {"platform_system": "Linux", "platform_machine": "x86_64", "implementation_name": "cpython"}
SOURCES = ("deepspeed", "colossalai", "contexttimer")
"""There is no wheel of these: one is built, without anything compiled."""


def versions(file: Path) -> dict[str, str]:
    """`name==version` by a package's name in small letters, with hyphens."""
    lines = (line.partition("==") for line in file.read_text().splitlines() if "==" in line)
    return {_key(name): version.strip() for name, _, version in lines}


def _key(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name.strip()).lower()


def fetch(names: tuple[str, ...], constraints: Path, folder: Path) -> None:
    """Put the wheels of these packages into a folder. Raises `CalledProcessError`."""
    folder.mkdir(parents=True, exist_ok=True)
    known = versions(constraints)
    wanted = {name: f"{name}=={known[_key(name)]}" if _key(name) in known else name for name in names}
    pip = [sys.executable, "-m", "pip"]
    built = [wanted[name] for name in names if name in SOURCES]
    subprocess.run([*pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), *built], check=True)
    target = ("--python-version", "3.12", "--implementation", "cp", "--only-binary", ":all:")
    platforms = [f"--platform=manylinux_{glibc}_x86_64" for glibc in ("2_34", "2_28", "2_24", "2_17")]
    rest = [wanted[name] for name in names if name not in SOURCES]
    command = [*pip, "download", "--quiet", "--no-deps", "--dest", str(folder), *target, *platforms]
    subprocess.run([*command, "--platform=manylinux2014_x86_64", *rest], check=True)


def lacking(folder: Path, *beside: str) -> list[str]:
    """What the wheels of a folder need that is neither there nor among them, nor `beside` them."""
    needs = set[str]()
    wheels = sorted(folder.glob("*.whl"))
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as opened:
            metadata = next(name for name in opened.namelist() if name.endswith(".dist-info/METADATA"))
            lines = opened.read(metadata).decode().splitlines()
        found = [Requirement(line.partition(":")[2]) for line in lines if line.startswith("Requires-Dist:")]
        needs |= {_key(one.name) for one in found if one.marker is None or one.marker.evaluate(MACHINE)}
    known = (*THERE, *beside, *(wheel.name.partition("-")[0] for wheel in wheels))
    return sorted(needs - {_key(name) for name in known})


def thin(wheel: Path, cuda: str = CUDA) -> None:
    """Leave the libraries for other versions of CUDA, and for other makers' GPUs, out of bitsandbytes' wheel."""
    library = re.compile(r"^bitsandbytes/libbitsandbytes_(?!cpu)(?!cuda" + cuda + r"\.)[^/]*$")
    with tempfile.TemporaryDirectory() as folder:
        thinner = Path(folder) / wheel.name
        with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(thinner, "w", zipfile.ZIP_DEFLATED) as new:
            for item in old.infolist():
                if library.match(item.filename):
                    continue
                data = old.read(item)
                if item.filename.endswith(".dist-info/RECORD"):
                    lines = data.decode().splitlines(keepends=True)
                    data = "".join(line for line in lines if not library.match(line.split(",")[0])).encode()
                new.writestr(item, data)
        wheel.write_bytes(thinner.read_bytes())


def main() -> int:
    """Fetch, and say how large it is; 1 if that is too large."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    fetch((*OWN, *TRAINING), ROOT / "constraints.txt", folder)
    fetch(COLOSSALAI, ROOT / "constraints-colossalai.txt", folder / "colossalai")
    for wheel in folder.rglob("bitsandbytes-*.whl"):
        thin(wheel)
    size = sum(wheel.stat().st_size for wheel in folder.rglob("*.whl"))
    print(f"{size / 2**20:.1f} MiB in {len(list(folder.rglob('*.whl')))} wheels; at most {LIMIT / 2**20:.0f}")
    lost = lacking(folder)
    lost += lacking(folder / "colossalai", *OWN, *TRAINING, *BEHIND, *NEVER_IMPORTED)
    if lost:
        print(f"these need what is neither among them nor on the machine: {', '.join(lost)}", file=sys.stderr)
    return int(size > LIMIT or bool(lost))


if __name__ == "__main__":
    sys.exit(main())
