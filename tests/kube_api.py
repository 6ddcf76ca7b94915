"""An API server for the real kubectl, and what stands behind one: the pods of a Job run as processes of this machine.

A test double: it judges a Job by the few rules that its files rely on. Of custom resources it keeps the objects, as an
API server does where no controller runs.
https://kubernetes.io/docs/reference/using-api/api-concepts/ https://kubernetes.io/docs/concepts/workloads/controllers/job/
"""

from __future__ import annotations

import http.server
import itertools
import json
import os
import re
import subprocess
import threading
import time
import urllib.parse
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

KUBECONFIG = """\
apiVersion: v1
kind: Config
current-context: here
contexts: [{{name: here, context: {{cluster: here, user: here, namespace: default}}}}]
clusters: [{{name: here, cluster: {{server: "http://127.0.0.1:{port}"}}}}]
users: [{{name: here, user: {{}}}}]
"""
JOBS, PODS = "/apis/batch/v1/namespaces/default/jobs", "/api/v1/namespaces/default/pods"
VERBS = ["create", "delete", "get", "list", "patch", "watch"]
GROUPS = {
    "batch/v1": {"jobs": "Job"},
    "trainer.kubeflow.org/v1alpha1": {"trainjobs": "TrainJob", "trainingruntimes": "TrainingRuntime"},
    "jobset.x-k8s.io/v1alpha2": {"jobsets": "JobSet"},
}
CUSTOM = re.compile(r"/apis/([a-z0-9.-]+/v\w+)/namespaces/([a-z0-9-]+)/(trainjobs|trainingruntimes|jobsets)(?:/(.+))?")


@dataclass
class Pod:
    """One process in the place of a container."""

    name: str
    labels: dict[str, str]
    process: subprocess.Popen[bytes]
    log: Path
    grace: float

    def object(self) -> dict[str, Any]:
        code = self.process.poll()
        phase = "Running" if code is None else "Failed" if code else "Succeeded"
        state = {"running": {}} if code is None else {"terminated": {"exitCode": code, "reason": "Error"}}
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": self.name, "namespace": "default", "labels": self.labels},
            "spec": {"containers": [{"name": "node"}]},
            "status": {"phase": phase, "containerStatuses": [{"name": "node", "state": state}]},
        }

    def end(self) -> None:
        """SIGTERM, then the grace, then SIGKILL."""
        self.process.terminate()
        try:
            self.process.wait(self.grace)
        except subprocess.TimeoutExpired:
            self.process.kill()


@dataclass
class Cluster:
    """The objects, and the processes of their pods."""

    folder: Path
    environ: dict[str, str]
    jobs: dict[str, dict[str, Any]] = field(default_factory=dict)
    pods: dict[str, Pod] = field(default_factory=dict)
    custom: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By path."""
    patched: list[str] = field(default_factory=list)
    """The paths of objects that were applied again, with changes."""
    unknown: list[str] = field(default_factory=list)
    """What was asked for that this server does not know."""
    _count: itertools.count[int] = field(default_factory=itertools.count)
    _judging: threading.Lock = field(default_factory=threading.Lock)
    """Two requests at once must not both start the pod that follows a stopped one."""

    def create(self, job: dict[str, Any]) -> dict[str, Any]:
        self.jobs[self.named(job)] = job
        self._start(job)
        return job

    def named(self, created: dict[str, Any], space: str = "default") -> str:
        """The name of a new object, made up where it asks for that."""
        metadata = created["metadata"]
        metadata["name"] = metadata.get("name") or f"{metadata['generateName']}x{next(self._count)}"
        assert metadata.setdefault("namespace", space) == space
        return str(metadata["name"])

    def _start(self, job: dict[str, Any]) -> None:
        spec, name = job["spec"]["template"]["spec"], job["metadata"]["name"]
        [container] = spec["containers"]
        labels = {"batch.kubernetes.io/job-name": name}
        known: dict[str, str] = {}
        for variable in container["env"]:
            path = variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath", "")
            value = variable.get("value", "")
            if path:
                value = labels[re.fullmatch(r"metadata\.labels\['(.+)'\]", path)[1]]  # type: ignore[index]
            known[variable["name"]] = expanded(value, known)
        pod_name = f"{name}-{next(self._count)}"
        log = self.folder / f"{pod_name}.log"
        with log.open("wb") as stream:
            process = subprocess.Popen(
                [expanded(word, known) for word in container["command"]],
                cwd=container["workingDir"],
                env={**self.environ, **known},
                stdout=stream,
                stderr=subprocess.STDOUT,
            )
        self.pods[pod_name] = Pod(pod_name, labels, process, log, spec["terminationGracePeriodSeconds"])

    def status(self, job: dict[str, Any]) -> dict[str, Any]:
        """By its pods; one that may fail again is started again."""
        with self._judging:
            return self._status(job)

    def _status(self, job: dict[str, Any]) -> dict[str, Any]:
        spec, name = job["spec"], job["metadata"]["name"]
        codes = [pod.process.poll() for pod in self.pods.values() if pod.name.startswith(f"{name}-")]
        failed = [code for code in codes if code]
        found: dict[str, Any] = {"failed": len(failed), "conditions": []}
        if 0 in codes:
            found["conditions"] = [{"type": "Complete", "status": "True"}]
        elif failed and codes[-1] is not None:
            [rule] = [each for each in spec["podFailurePolicy"]["rules"] if each["action"] == "FailJob"]
            assert rule["onExitCodes"]["operator"] == "NotIn"
            is_final = codes[-1] not in rule["onExitCodes"]["values"]
            if is_final or len(failed) > spec["backoffLimit"]:
                reason = "PodFailurePolicy" if is_final else "BackoffLimitExceeded"
                found["conditions"] = [{"type": "Failed", "status": "True", "reason": reason, "message": reason}]
            else:
                self._start(job)
                found["active"] = 1
        else:
            found |= {"active": 1, "ready": 1}
        return found

    def delete(self, name: str) -> None:
        del self.jobs[name]
        for pod in list(self.pods.values()):
            if pod.name.startswith(f"{name}-"):
                threading.Thread(target=pod.end).start()


def expanded(text: str, known: dict[str, str]) -> str:
    """$(NAME) is a variable's value, and $$ is $."""
    return re.sub(r"\$\$|\$\((\w+)\)", lambda m: known.get(m[1], m[0]) if m[1] else "$", text)


class Answers(http.server.BaseHTTPRequestHandler):
    """One request of kubectl."""

    cluster: Cluster
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""

    def do_GET(self) -> None:
        url = urllib.parse.urlsplit(self.path)
        asked, cluster = dict(urllib.parse.parse_qsl(url.query)), self.cluster
        if url.path == "/api/v1":
            self._say(resources("v1", {"pods": "Pod", "pods/log": "Pod"}))
        elif (group := url.path.removeprefix("/apis/")) in GROUPS:
            self._say(resources(group, GROUPS[group]))
        elif (
            url.path.startswith("/openapi/v3/apis/") and (group := url.path.removeprefix("/openapi/v3/apis/")) in GROUPS
        ):
            self._say(openapi(group))
        elif url.path in self.cluster.custom:
            self._say(self.cluster.custom[url.path])
        elif url.path in FIXED:
            self._say(FIXED[url.path])
        elif re.fullmatch(r"/api/v1/namespaces/[a-z0-9-]+/pods", url.path):
            wanted = dict(part.split("=", 1) for part in asked["labelSelector"].split(","))
            found = [pod.object() for pod in cluster.pods.values() if wanted.items() <= pod.labels.items()]
            self._say({"apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": found})
        elif url.path.startswith(f"{PODS}/") and url.path.endswith("/log"):
            self._log(cluster.pods[url.path.split("/")[-2]], asked)
        elif url.path.startswith(f"{PODS}/") and (pod := cluster.pods.get(url.path.split("/")[-1])):
            self._say(pod.object())
        elif url.path.startswith(f"{JOBS}/") and (job := cluster.jobs.get(url.path.split("/")[-1])):
            self._say({**job, "status": cluster.status(job)})
        else:
            known = url.path.startswith((JOBS, PODS)) or bool(CUSTOM.fullmatch(url.path))
            self._refuse(404, "NotFound", f"{url.path} not found", known=known)

    def do_POST(self) -> None:
        url = urllib.parse.urlsplit(self.path)
        job = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if (found := CUSTOM.fullmatch(url.path)) and GROUPS[found[1]][found[3]] == job["kind"]:
            self.cluster.custom[f"{url.path}/{self.cluster.named(job, found[2])}"] = job
            self._say(job, 201)
        elif url.path != JOBS:
            self._refuse(404, "NotFound", f"{url.path} not found", known=False)
        elif not job["spec"]["template"]["spec"]["containers"][0]["image"]:
            self._refuse(422, "Invalid", "spec.template.spec.containers[0].image: Required value")
        else:
            self._say(self.cluster.create(job), 201)

    def do_PATCH(self) -> None:
        """Of `kubectl apply` to what is there and differs: a merge patch, of custom resources."""
        self.rfile.read(int(self.headers["Content-Length"]))
        assert self.headers["Content-Type"] == "application/merge-patch+json"
        self.cluster.patched.append(self.path.split("?")[0])
        self._say(self.cluster.custom[self.cluster.patched[-1]])

    def do_DELETE(self) -> None:
        name = self.path.split("?")[0].split("/")[-1]
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.cluster.custom.pop(self.path.split("?")[0], None):
            self._say({"apiVersion": "v1", "kind": "Status", "status": "Success"})
        elif name in self.cluster.jobs:
            self.cluster.delete(name)
            self._say({"apiVersion": "v1", "kind": "Status", "status": "Success"})
        else:
            self._refuse(404, "NotFound", f'jobs.batch "{name}" not found')

    def _log(self, pod: Pod, asked: dict[str, str]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Connection", "close")
        self.end_headers()
        minute, number, rest = list(self.cluster.pods).index(pod.name), 0, b""
        with pod.log.open("rb") as stream:
            while True:
                is_over = pod.process.poll() is not None or asked.get("follow") != "true"
                lines = (rest + stream.read()).splitlines(keepends=True)
                rest = lines.pop() if lines and not (is_over or lines[-1].endswith(b"\n")) else b""
                for line in lines:
                    # Those of one pod before those of the next.
                    time_stamp = f"2026-01-01T00:{minute:02}:00.{number:06}Z"
                    number += 1
                    if time_stamp >= asked.get("sinceTime", ""):
                        self.wfile.write(time_stamp.encode() + b" " + line if asked.get("timestamps") else line)
                self.wfile.flush()
                if is_over:
                    break
                time.sleep(0.1)
        self.close_connection = True

    def _say(self, found: dict[str, Any], status: int = 200) -> None:
        body = json.dumps(found).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _refuse(self, code: int, reason: str, words: str, *, known: bool = True) -> None:
        if not known:
            self.cluster.unknown.append(f"{self.command} {self.path}")
        status = {"apiVersion": "v1", "kind": "Status", "status": "Failure"}
        self._say({**status, "reason": reason, "message": words, "code": code}, code)


def resources(version: str, listed: dict[str, str]) -> dict[str, Any]:
    """What kubectl learns of a group."""
    found = [
        {"name": name, "singularName": kind.lower(), "namespaced": True, "kind": kind, "verbs": VERBS}
        for name, kind in listed.items()
    ]
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": found}


def openapi(version: str) -> dict[str, Any]:
    """That the server itself looks at the fields of objects, which kubectl then leaves to it."""
    group, _, name = version.partition("/")
    checked = [{"name": "fieldValidation", "in": "query", "schema": {"type": "string"}}]
    paths = {
        f"/apis/{version}/namespaces/{{namespace}}/{resource}/{{name}}": {
            "patch": {
                "x-kubernetes-group-version-kind": {"group": group, "version": name, "kind": kind},
                "parameters": checked,
                "responses": {"200": {"description": "OK"}},
            }
        }
        for resource, kind in GROUPS[version].items()
    }
    return {"openapi": "3.0.0", "info": {"title": "Kubernetes", "version": "v1.32.0"}, "paths": paths}


_VERSIONS = {
    version.partition("/")[0]: {"groupVersion": version, "version": version.partition("/")[2]} for version in GROUPS
}
FIXED: dict[str, dict[str, Any]] = {
    "/version": {"major": "1", "minor": "32", "gitVersion": "v1.32.0"},
    "/api": {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []},
    "/apis": {
        "kind": "APIGroupList",
        "apiVersion": "v1",
        "groups": [{"name": name, "versions": [v], "preferredVersion": v} for name, v in _VERSIONS.items()],
    },
    "/openapi/v3": {
        "paths": {f"apis/{version}": {"serverRelativeURL": f"/openapi/v3/apis/{version}"} for version in GROUPS}
    },
}


class Server:
    """The API server on a free port of the loopback, and the file by which kubectl finds it."""

    def __init__(self, folder: Path, environ: dict[str, str]) -> None:
        folder.mkdir()
        self.cluster = Cluster(folder, environ)
        handler = type("Handler", (Answers,), {"cluster": self.cluster})
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.config = folder / "config"
        self.config.write_text(KUBECONFIG.format(port=self._server.server_address[1]))
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        for pod in self.cluster.pods.values():
            if pod.process.poll() is None:
                pod.process.kill()
            pod.process.wait()


def environment(server: Server, folder: Path) -> dict[str, str]:
    """In which kubectl reaches the server, and nothing else."""
    return {"KUBECONFIG": str(server.config), "HOME": str(folder), "PATH": os.environ["PATH"]}
