"""Upload a folder to a repository of the Hugging Face hub, with the login of its client.

Arguments: the folder, the repository, and `public` or `private` for one that has to be made.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    folder, repository, kind = sys.argv[1:4]
    sys.stdout.write("\n" + json.dumps(pushed(Path(folder), repository, private=kind != "public")) + "\n")


def pushed(folder: Path, repository: str, *, private: bool) -> dict[str, Any]:
    """Where it is now, or why it is not."""
    try:
        from huggingface_hub import HfApi
    except ImportError as error:
        return {"problem": f"{error}: pip install huggingface-hub"}
    hub = HfApi()
    try:
        url = hub.create_repo(repository, private=private, exist_ok=True)
        hub.upload_folder(repo_id=repository, folder_path=folder, commit_message="Upload a model")
    except Exception as error:
        answer = getattr(error, "response", None)
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        return {"problem": first, "status": getattr(answer, "status_code", None)}
    return {"url": str(url), "local_base": local_base(folder)}


def local_base(folder: Path) -> str:
    """The folder that an adapter names as its base model; empty for an id of the hub."""
    file = folder / "adapter_config.json"
    base = json.loads(file.read_text()).get("base_model_name_or_path") if file.is_file() else ""
    return base if base and Path(base).is_dir() else ""


if __name__ == "__main__":
    main()
