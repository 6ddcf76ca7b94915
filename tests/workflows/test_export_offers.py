"""What `trainwiz export` does with a model beside writing it: GGUF, the line that serves it, the hub."""

import base64
import hashlib
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import projects
import pytest
import warm
from plans import BASE
from safetensors.torch import save_model
from test_checkpoints_command import rewrite
from test_tasks import load

from trainwiz import plan as plans
from trainwiz.cli import run as trainwiz
from trainwiz.errors import UsageError
from trainwiz.probe import upload
from trainwiz.probe.cache import has_token
from trainwiz.probe.project import project
from trainwiz.process import early_signals
from trainwiz.store import runs
from trainwiz.workflows.launch import publication
from trainwiz.workflows.weights import gguf, serving

pytestmark = pytest.mark.filterwarnings("default")
CONVERTER = """
import pathlib, sys
folder, file = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[sys.argv.index("--outfile") + 1])
print("converting", sys.argv[0])
assert (folder / "config.json").is_file() or (folder / "adapter_config.json").is_file()
file.write_text(" ".join(sys.argv[sys.argv.index("--outtype"):]))
sys.exit(3 if "q8_0" in sys.argv else 0)
"""


class Hub(BaseHTTPRequestHandler):
    """As much of the hub's interface as its client needs to make a repository and to upload small files."""

    asked: ClassVar[list[tuple[str, Any]]] = []

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        self.answer(200, {"sha": "0" * 40, "id": "me/mine", "siblings": []})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        lines = [json.loads(line) for line in body.splitlines() if line.strip()]
        self.asked.append((self.path, lines))
        if self.headers.get("Authorization") != "Bearer hf_right":
            return self.answer(401, {"error": "Invalid credentials"})
        if self.path.endswith("/repos/create"):
            host = f"http://{self.headers['Host']}/me/mine"
            return self.answer(200, {"url": host, "id": "me/mine", "name": "me/mine"})
        if "/preupload/" in self.path:
            files = [{"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in lines[0]["files"]]
            return self.answer(200, {"files": files})
        return self.answer(
            200, {"commitUrl": f"http://{self.headers['Host']}/me/mine/commit/1", "commitOid": "1", "success": True}
        )

    def answer(self, status: int, value: Any) -> None:
        content = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, Any]]]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("HF_TOKEN", "hf_right")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    Hub.asked.clear()
    yield Hub.asked
    server.shutdown()
    server.server_close()


def adapter(folder: Path, rank: int, base: str = "org/base") -> Path:
    folder.mkdir()
    settings = {"base_model_name_or_path": base, "r": rank, "task_type": "CAUSAL_LM"}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return folder


def test_a_folder_is_uploaded_by_the_hubs_own_client(hub: list[tuple[str, Any]], tmp_path: Path) -> None:
    folder = adapter(tmp_path / "model", 8, str(tmp_path))
    found = upload.push(sys.executable, folder, "me/mine", public=False)
    assert not found.problem
    assert found.local_base == str(tmp_path)
    made = next(lines[0] for path, lines in hub if path.endswith("/repos/create"))
    assert (made["name"], made["organization"], made["visibility"]) == ("mine", "me", "private")
    committed = next(lines for path, lines in hub if "/commit/" in path)
    (file,) = [line["value"] for line in committed if line["key"] == "file"]
    assert file["path"] == "adapter_config.json"
    assert base64.b64decode(file["content"]) == (folder / "adapter_config.json").read_bytes()


def test_a_refusal_is_said_without_the_token(
    hub: list[tuple[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_wrongwrongwrong")
    found = upload.push(sys.executable, adapter(tmp_path / "model", 8), "me/mine", public=True)
    assert found.status == 401
    assert "401" in found.problem
    assert "wrongwrong" not in found.problem
    assert not [path for path, _ in hub if "/commit/" in path], "nothing was uploaded"


def test_a_plan_uploads_its_model_and_a_refusal_leaves_it_there(
    hub: list[tuple[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = runs.create(tmp_path)
    plan = plans.with_changes(BASE, {"model.push_to_hub": "me/mine"})
    publication.publish(sys.executable, plan, run)
    assert "nothing to upload" in capsys.readouterr().err
    adapter(run.folder / "model", 8)
    publication.publish(sys.executable, plan, run)
    made = next(lines[0] for path, lines in hub if path.endswith("/repos/create"))
    assert made["visibility"] == "private"
    assert "adapter_config.json" in {line["value"]["path"] for line in _files(hub)}
    assert "uploaded: http" in capsys.readouterr().err

    (merged := run.folder / "merged").mkdir()
    (merged / "config.json").write_text("{}")
    hub.clear()
    publication.publish(sys.executable, plans.with_changes(plan, {"model.push_public": True}), run)
    assert next(lines[0] for path, lines in hub if path.endswith("/repos/create"))["visibility"] == "public"
    assert {line["value"]["path"] for line in _files(hub)} == {"config.json"}, "whole, where there is a whole one"

    capsys.readouterr()
    for name, value, says in (("HF_TOKEN", "hf_wrong", "hf auth login"), ("HF_HUB_OFFLINE", "1", "upload it later")):
        monkeypatch.setenv(name, value)
        publication.publish(sys.executable, plan, run)
        said = capsys.readouterr().err
        assert "me/mine was not uploaded" in said
        assert says in said
        assert "hf upload me/mine" in said
        monkeypatch.setenv("HF_TOKEN", "hf_right")


def test_a_trial_is_not_uploaded(
    hub: list[tuple[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`launch -- --n_steps 2` must not replace the model that a whole training uploaded."""
    run, plan = runs.create(tmp_path), plans.with_changes(BASE, {"model.push_to_hub": "me/mine"})
    adapter(run.folder / "model", 8)
    for key, planned, used in (("schedule.n_steps", None, 2), ("data.train", "all", "few"), ("model.name", "a", "b")):
        run.record("command", {"instead_of_plan": {key: {"plan": planned, "used": used}}})
        publication.publish(sys.executable, plan, run)
        said = " ".join(capsys.readouterr().err.split())
        assert f"used {used} for {key}, but the plan has {planned or 'null'}" in said
        assert "--push me/mine" in said
        assert not hub
    run.record("command", {"instead_of_plan": {"optimizer.learning_rate": {"plan": 0.1, "used": 0.2}}})
    publication.publish(sys.executable, plan, run)
    assert "adapter_config.json" in {line["value"]["path"] for line in _files(hub)}


def test_a_signal_ends_an_upload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """After a run, when its own signals are over."""
    run, plan = runs.create(tmp_path), plans.with_changes(BASE, {"model.push_to_hub": "me/mine"})
    adapter(run.folder / "model", 8)
    monkeypatch.setattr(publication.hub, "push", lambda *_, **__: os.kill(os.getpid(), signal.SIGTERM))
    with early_signals.raised():
        early_signals.defer()
        publication.publish(sys.executable, plan, run)
    assert "SIGTERM: the upload was stopped; the model is in" in capsys.readouterr().err
    assert not early_signals.deferred()


def _files(hub: list[tuple[str, Any]]) -> list[Any]:
    """What was committed."""
    return [line for path, lines in hub if "/commit/" in path for line in lines if line["key"] == "file"]


def test_a_token_is_found_where_the_hubs_client_looks_for_it(tmp_path: Path) -> None:
    where = {"HF_HOME": str(tmp_path)}
    assert not has_token(where)
    assert has_token({**where, "HF_TOKEN": "hf_x"})
    assert not has_token({**where, "HF_TOKEN": " "})
    (tmp_path / "token").write_text("")
    assert not has_token(where)
    (tmp_path / "token").write_text("hf_x")
    assert has_token(where)
    assert not has_token({**where, "HF_TOKEN_PATH": str(tmp_path / "other")})
    plan = plans.with_changes(BASE, {"model.push_to_hub": "me/mine"})
    assert [project(each, str(tmp_path), environ=where).hub_token for each in (plan, BASE)] == [True, None]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--push", "mine"], "--push must have the form ORG/NAME, not mine"),
        (["--push", "a/b/c"], "--push must have the form ORG/NAME, not a/b/c"),
        (["--push", "../.."], "--push must have the form ORG/NAME, not ../.."),
    ],
)
def test_a_name_that_is_none_stops_before_anything_is_done(
    words: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert trainwiz(["export", str(tmp_path), *words]) == 2
    assert says in capsys.readouterr().err


def test_the_line_that_serves_it(tmp_path: Path) -> None:
    assert serving.vllm(Path("a folder")) == "vllm serve 'a folder'"
    small, large = adapter(tmp_path / "small", 16), adapter(tmp_path / "large", 64)
    lora = "vllm serve org/base --enable-lora --lora-modules"
    assert serving.vllm(small) == f"{lora} small={small}"
    assert serving.vllm(large) == f"{lora} large={large} --max-lora-rank 64"


@pytest.mark.parametrize(
    ("more", "why"),
    [({"use_dora": True}, "lengths of rows: DoRA"), ({"modules_to_save": ["lm_head"]}, "whole modules: lm_head")],
)
def test_no_line_serves_an_adapter_that_vllm_and_llama_cpp_refuse(
    more: dict[str, object], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, merged = adapter(tmp_path / "model", 8), tmp_path / "merged"
    settings = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps({**settings, **more}))
    serving.show(folder, merged)
    said = capsys.readouterr().err
    assert (f"{why}; with model.merge_adapter true" in said, "vllm serve" in said, "trainwiz chat" in said) == (
        True,
        False,
        True,
    )
    with pytest.raises(UsageError, match=why):
        gguf.convert(sys.executable, tmp_path / "convert_hf_to_gguf.py", {"model": folder, "merged": merged}, "bf16")


@pytest.fixture
def converter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (folder := tmp_path / "llama.cpp").mkdir()
    for name in ("convert_hf_to_gguf.py", "convert_lora_to_gguf.py"):
        (folder / name).write_text(CONVERTER)
    monkeypatch.setenv("LLAMA_CPP", str(folder))
    return folder / "convert_hf_to_gguf.py"


def test_an_adapter_has_a_converter_of_its_own(
    converter: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    targets = {"model": adapter(tmp_path / "model", 8), "merged": tmp_path / "merged"}
    file = gguf.convert(sys.executable, converter, targets, "bf16")
    assert (file, file.read_text()) == (tmp_path / "model.gguf", "--outtype bf16")
    assert "convert_lora_to_gguf.py" in capfd.readouterr().err


def test_an_adapter_of_a_folder_is_converted_with_that_folder(converter: Path, tmp_path: Path) -> None:
    (base := tmp_path / "a base").mkdir()
    for name, given in (("whole", str(base)), ("beside", "../a base")):
        targets = {"model": adapter(tmp_path / name, 8, given), "merged": tmp_path / "merged"}
        file = gguf.convert(sys.executable, converter, targets, "bf16")
        words = file.read_text().removeprefix("--outtype bf16 --base ")
        assert Path(words).resolve() == base


@pytest.mark.usefixtures("converter")
def test_a_checkpoint_becomes_a_gguf_file(tmp_path: Path) -> None:
    """Of a whole model; what is wrong with the wish is said before the weights are gathered."""
    project = tmp_path / "project"
    task = load(project, "causal_lm")
    checkpoint = project / "output" / "checkpoints" / "checkpoint-00000003"
    checkpoint.mkdir(parents=True)
    save_model(task.build_model(task.TaskConfig()), str(checkpoint / "model.safetensors"))
    sums = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in checkpoint.iterdir()}
    rewrite(checkpoint, update=3, layout="whole", world=1, config={}, sha256=sums)
    done = projects.trainwiz("export", str(project), "--gguf", "q4")
    assert (done.code, "--gguf must be one of auto, f32, f16, bf16, q8_0, not q4" in done.err) == (2, True)
    nowhere = {"LLAMA_CPP": "", "PATH": os.path.dirname(sys.executable)}
    done = projects.trainwiz("export", str(project), "--gguf", "bf16", env=nowhere)
    assert (done.code, "convert_hf_to_gguf.py of llama.cpp was not found" in done.err) == (2, True)
    assert not (project / "exported").exists()
    done = projects.trainwiz("export", str(project), "--gguf", "bf16", "--python", warm.python())
    target = project / "exported" / "checkpoint-00000003"
    assert done.code == 0, done.err
    assert done.out.split() == [str(target), f"{target}.gguf"]
    assert f"vllm serve {target}" in done.err
    assert f"trainwiz chat {target}" in done.err
    other = tmp_path / "other"
    done = projects.trainwiz(
        "export", str(project), "--gguf", "q8_0", "--output", str(other), "--python", warm.python()
    )
    assert (done.code, "ended with exit code 3" in done.err) == (1, True)
    assert f"then: {warm.python()}" in done.err
    assert len({file.stat().st_mode for file in other.iterdir()}) == 1, "whoever may read one may serve all"
