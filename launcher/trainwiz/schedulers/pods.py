"""Why a job of Kubernetes waits or ended, by the status of its pods.

https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trainwiz.message import Message, say
from trainwiz.outcome import STOPPED_CODE
from trainwiz.schedulers.scheduler import Phase, Seen

NOT_STARTED = say("its pods have not started")
_OPEN = (Phase.QUEUED, Phase.REQUEUED, Phase.RUNNING)
_USUAL = ("ContainerCreating", "PodInitializing", "")
"""What containers wait for on their way to the start."""
_IMAGE = ("ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError")


def told(seen: Seen, pods: Sequence[object], *, restarted: bool) -> Seen:
    """A job's state with what its pods say. A job counts pods as active that have not found a node."""
    known = [_mapping(_mapping(pod).get("status")) for pod in pods]
    if not known:
        return seen
    if seen.phase is Phase.FAILED:
        return dataclasses.replace(seen, reason=_first(map(_ended, known)) or seen.reason)
    if seen.phase not in _OPEN:
        return seen
    reason = _first(map(_waiting, known))
    if any(status.get("phase") == "Running" for status in known):
        return Seen(phase=Phase.RUNNING, reason=reason)
    if seen.phase is Phase.RUNNING and not any(status.get("phase") == "Pending" for status in known):
        return seen
    phase = Phase.REQUEUED if restarted or seen.phase is Phase.REQUEUED else Phase.QUEUED
    return Seen(phase=phase, reason=reason or _first(map(_ended, known)) or seen.reason or NOT_STARTED)


def _waiting(status: Mapping[str, Any]) -> Message | None:
    if status.get("phase") != "Pending":
        return None
    for container in _containers(status):
        waiting = _mapping(_mapping(container.get("state")).get("waiting"))
        reason, words = _words(waiting, "reason"), _words(waiting, "message")
        if reason in _IMAGE:
            return say("the image cannot be pulled (cluster.image), {reason}: {words}", reason=reason, words=words)
        if reason not in _USUAL:
            return say("its container cannot start, {reason}: {words}", reason=reason, words=words)
    for condition in _conditions(status):
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            words = _words(condition, "message")
            if condition.get("reason") == "Unschedulable":
                return say("no node can take a pod: {words}", words=words)
            return say("a pod is held back: {words}", words=words)
    return None


def _ended(status: Mapping[str, Any]) -> Message | None:
    if status.get("phase") != "Failed":
        return None
    words = _words(status, "message")
    if status.get("reason") == "Evicted":
        return say("its node evicted a pod: {words}", words=words)
    for condition in _conditions(status):
        if condition.get("type") == "DisruptionTarget" and condition.get("status") == "True":
            reason, words = _words(condition, "reason"), _words(condition, "message")
            if reason == "PreemptionByScheduler":
                return say("a job with higher priority took its node: {words}", words=words)
            return say("a pod lost its node, {reason}: {words}", reason=reason, words=words)
    for container in _containers(status):
        ended = _mapping(_mapping(container.get("state")).get("terminated"))
        code = ended.get("exitCode")
        if ended.get("reason") == "OOMKilled":
            return say(
                "a container exceeded its limit of host memory (OOMKilled, exit code {code}); raise cluster.memory",
                code=code,
            )
        if isinstance(code, int) and code not in (0, STOPPED_CODE):
            return say("a container exited with code {code}", code=code)
    return None


def _containers(status: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for name in ("initContainerStatuses", "containerStatuses"):
        yield from map(_mapping, status.get(name) or ())


def _conditions(status: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield from map(_mapping, status.get("conditions") or ())


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _words(value: Mapping[str, Any], key: str) -> str:
    return " ".join(str(value.get(key) or "").split())


def _first(messages: Iterator[Message | None]) -> Message | None:
    return next((message for message in messages if message), None)
