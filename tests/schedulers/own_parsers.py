"""Read the files of jobs as their schedulers do: `own_parsers.py < [{"kind": …, "document": {…}}, …]`.

Runs in the environment of `make schedulers`. Prints a JSON list with what is wrong with each document; empty: nothing.
"""

import copy
import functools
import json
import sys
from collections.abc import Iterator
from typing import Any

import kubernetes_validate
import sky
from kubernetes_validate import utils

# It reads the schemas of a version, megabytes, for each document that it looks at.
utils.schema_contents = functools.cache(utils.schema_contents)
VERSIONS = [f"1.{minor}" for minor in range(29, 38)]


def built_in(document: Any) -> Iterator[dict[str, Any]]:
    """The objects of Kubernetes itself in a document: it, or jobs that a JobSet or a runtime makes of it."""
    if isinstance(document, dict):
        if document.get("apiVersion") == "batch/v1":
            yield document
        elif "template" in document and "name" in document:  # a replicated job
            yield {"apiVersion": "batch/v1", "kind": "Job", **document["template"]}
        else:
            for value in document.values():
                yield from built_in(value)
    elif isinstance(document, list):
        for value in document:
            yield from built_in(value)


def refused_by_kubernetes(document: dict[str, Any]) -> str:
    objects = list(built_in(document))
    for one in objects:
        named = {**one, "metadata": {"name": "one", **one.get("metadata", {})}}
        for version in VERSIONS:
            try:
                kubernetes_validate.validate(named, version, strict=True)
            except kubernetes_validate.ValidationError as error:
                return f"{version}: {error.message}"
    return "" if objects else "nothing of Kubernetes itself is in it"


def refused_by_skypilot(document: dict[str, Any]) -> str:
    try:
        sky.Task.from_yaml_config(copy.deepcopy(document))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


READERS = {"kubernetes": refused_by_kubernetes, "skypilot": refused_by_skypilot}

if __name__ == "__main__":
    print(json.dumps([READERS[each["kind"]](each["document"]) for each in json.load(sys.stdin)]))
