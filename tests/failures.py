# ruff: noqa: E501  (programs in one string each)
"""Makes the logs in `tests/logs/`: each is the true output of a small program that fails in one certain way.

    python tests/failures.py [NAME…]      # all of them, or those named; needs root for a few (mounts, other users)

A file is called `<signature>.log`, or `<signature>--<variant>.log`. Logs of failures that need hardware are not made
here: their first line says where the words come from.
"""

import os
import platform
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

LOGS = Path(__file__).parent / "logs"
_KEPT_LINES = 120


@dataclass(frozen=True)
class Failure:
    """A program that fails. `ranks` > 0 starts so many under torchrun; `shell` replaces how it is started."""

    program: str
    ranks: int = 0
    env: dict[str, str] = field(default_factory=dict)
    shell: str = '"$PYTHON" fails.py'
    packages: tuple[str, ...] = ("torch",)


GROUP = "import torch, torch.distributed as dist\ndist.init_process_group('gloo')\nrank = dist.get_rank()\n"
ALONE = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29611"}
# A hub that answers as huggingface.co does for a repository of this kind.
HUB = """
import http.server, os, threading
class Hub(http.server.BaseHTTPRequestHandler):
    def do_HEAD(self):
        self.send_response({status})
        self.send_header('X-Error-Code', '{code}')
        self.send_header('X-Error-Message', '{message}')
        self.end_headers()
    do_GET = do_HEAD
    def log_message(self, *_): pass
server = http.server.HTTPServer(('127.0.0.1', 0), Hub)
threading.Thread(target=server.serve_forever, daemon=True).start()
os.environ['HF_ENDPOINT'] = f'http://127.0.0.1:{{server.server_port}}'
os.environ['HF_HUB_OFFLINE'] = '0'
from transformers import AutoModelForCausalLM
AutoModelForCausalLM.from_pretrained('{repo}')
"""
TINY_ENGINE = """
import torch, deepspeed
model = torch.nn.Linear(4, 4)
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config={
    'train_micro_batch_size_per_gpu': 1, 'optimizer': {'type': 'Adam', 'params': {'lr': 1e-3, 'torch_adam': True}},
    'zero_optimization': {'stage': 2}})
"""
ONE_RANK = {
    "RANK": "0",
    "LOCAL_RANK": "0",
    "WORLD_SIZE": "1",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29612",
    "DS_ACCELERATOR": "cpu",
}

# A layer that remembers what it saw, as a model with a cache of keys does.
RECOMPUTED = """
import torch
from torch.utils.checkpoint import checkpoint
cache = []
def layer(x):
    {change}
    return x.sin().exp()
checkpoint(layer, torch.ones(2, requires_grad=True), use_reentrant=False).sum().backward()
"""

# Colossal-AI lives in an environment of its own: make colossalai.
COLOSSAL: dict[str, Any] = {
    "shell": f"{LOGS.parent.parent}/.venv-colossalai/bin/python -W ignore fails.py",
    "packages": (),
}
BOOSTER = (
    "import torch, colossalai\nfrom colossalai.booster import Booster\nfrom colossalai.booster.plugin import {plugin}\n"
    "colossalai.launch_from_torch(verbose=False)\nmodel = torch.nn.Linear(2, 2)\n"
    "booster = Booster(plugin={plugin}({arguments}))\n"
)
BOOST = "booster.boost(model, torch.optim.SGD(model.parameters()))"
# A project of the custom task, made by trainwiz; what follows is run in it.
GENERATED = (
    '"$PYTHON" -m trainwiz init p --defaults --yes --set task=custom --set machine.device=cpu '
    "--set machine.num_processes=1 --set batch.real_batch_size=8 --set batch.per_device_batch_size=8 "
    "--set schedule.n_steps=4 --set data.eval= > made.txt 2>&1 && cd p && "
)


def generated(then: str) -> Failure:
    """A failure that the generated script reports in its own words."""
    return Failure("", shell=GENERATED + then, packages=("torch", "accelerate"))


FAILURES = {
    # memory
    "host_memory": Failure("import torch\ntorch.zeros(10**14)"),
    "host_memory--numpy": Failure("import numpy\nnumpy.zeros(10**14)", packages=("numpy",)),
    "host_memory--python": Failure(
        "import resource\nresource.setrlimit(resource.RLIMIT_AS, (2**28, 2**28))\nx = [0] * 10**9", packages=()
    ),
    "loader_killed": Failure(
        "import os, signal, torch\n"
        "class Data(torch.utils.data.Dataset):\n"
        "    def __len__(self): return 8\n"
        "    def __getitem__(self, i): os.kill(os.getpid(), signal.SIGKILL)\n"
        "for batch in torch.utils.data.DataLoader(Data(), num_workers=1): pass"
    ),
    "shm_full": Failure(
        "import torch\n"
        "class Data(torch.utils.data.Dataset):\n"
        "    def __len__(self): return 8\n"
        "    def __getitem__(self, i): return torch.ones(10**7)\n"
        "for batch in torch.utils.data.DataLoader(Data(), num_workers=1): pass",
        shell="unshare -m sh -c 'mount -t tmpfs -o size=4m tmpfs /dev/shm && \"$PYTHON\" fails.py'",
    ),
    "segfault": Failure("import faulthandler, ctypes\nfaulthandler.enable()\nctypes.string_at(0)", packages=()),
    # collectives and launching
    "port_in_use": Failure(
        "import os, socket\ns = socket.socket(socket.AF_INET6)\ns.bind(('::', 0))\ns.listen()\n"
        "os.environ['MASTER_PORT'] = str(s.getsockname()[1])\n" + GROUP,
        env=ALONE,
    ),
    "collective_timeout": Failure(
        "import datetime, time, torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo', timeout=datetime.timedelta(seconds=3))\n"
        "if dist.get_rank() == 1: time.sleep(8)\n"
        "dist.all_reduce(torch.ones(1))",
        ranks=2,
    ),
    "rendezvous_timeout": Failure(
        "import datetime, torch.distributed as dist\n"
        "dist.init_process_group('gloo', timeout=datetime.timedelta(seconds=2))",
        env=ALONE,
    ),
    "connection_lost": Failure(
        GROUP + "import os\nif rank == 1: os._exit(0)\nfor _ in range(9): dist.all_reduce(torch.ones(1))",
        shell='MASTER_ADDR=127.0.0.1 MASTER_PORT=29613 WORLD_SIZE=2 RANK=1 "$PYTHON" fails.py & '
        'MASTER_ADDR=127.0.0.1 MASTER_PORT=29613 WORLD_SIZE=2 RANK=0 "$PYTHON" fails.py; code=$?; wait; exit $code',
    ),
    "wrong_interface": Failure(GROUP, env={**ONE_RANK, "GLOO_SOCKET_IFNAME": "eth9"}),
    "address_unknown": Failure(
        "import datetime, torch.distributed as dist\n"
        "dist.init_process_group('gloo', timeout=datetime.timedelta(seconds=3))",
        env={**ALONE, "RANK": "1", "MASTER_ADDR": "node0.invalid"},
    ),
    "address_unreachable": Failure(
        "import datetime, torch.distributed as dist\n"
        "dist.init_process_group('gloo', timeout=datetime.timedelta(seconds=3))",
        env={**ALONE, "RANK": "1", "MASTER_PORT": "29614"},
    ),
    "not_launched": Failure("import torch.distributed as dist\ndist.init_process_group('gloo')"),
    "no_process_group": Failure("import torch.distributed as dist\ndist.barrier()"),
    "collective_mismatch": Failure(
        GROUP + "dist.all_reduce(torch.ones(1 + rank))", ranks=2, env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}
    ),
    "models_differ": Failure(
        GROUP + "torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2 + rank, 2))", ranks=2
    ),
    "unused_parameters": Failure(
        GROUP + "class Net(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.used, self.unused = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)\n"
        "    def forward(self, x): return self.used(x)\n"
        "net = torch.nn.parallel.DistributedDataParallel(Net())\n"
        "for _ in range(2): net(torch.ones(2, 2)).sum().backward()",
        ranks=2,
    ),
    "ready_twice": Failure(
        GROUP + "from torch.utils.checkpoint import checkpoint\n"
        "class Net(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.a = torch.nn.Linear(2, 2)\n"
        "    def forward(self, x):\n"
        "        return checkpoint(self.a, checkpoint(self.a, x, use_reentrant=True), use_reentrant=True)\n"
        "net = torch.nn.parallel.DistributedDataParallel(Net(), find_unused_parameters=True)\n"
        "x = torch.ones(2, 2, requires_grad=True)\n"
        "net(x).sum().backward()",
        ranks=2,
    ),
    "script_missing": Failure("", shell='"$PYTHON" nowhere.py', packages=()),
    "arguments": Failure(
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--lr')\np.parse_args(['--rate', '1'])",
        packages=(),
    ),
    "syntax": Failure("def f(:\n  pass", packages=()),
    "spawn_without_main": Failure(
        "import torch.multiprocessing as mp\ndef work(rank): pass\nmp.start_processes(work, nprocs=1)"
    ),
    "pickling": Failure(
        "import torch\n"
        "def main():\n"
        "    class Data(torch.utils.data.Dataset):\n"
        "        def __len__(self): return 2\n"
        "        def __getitem__(self, i): return i\n"
        "    loader = torch.utils.data.DataLoader(Data(), num_workers=1, multiprocessing_context='spawn')\n"
        "    next(iter(loader))\n"
        "if __name__ == '__main__': main()"
    ),
    "file_too_large": Failure(
        "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (2**16, 2**16))\n"
        "open('big', 'wb').write(bytes(2**20))",
        packages=(),
    ),
    "no_threads": Failure(
        "import os, resource, threading\nresource.setrlimit(resource.RLIMIT_NPROC, (1, 1))\nos.setuid(65534)\n"
        "threading.Thread(target=print).start()",
        packages=(),
    ),
    "not_fetched": Failure("import urllib.request\nurllib.request.urlopen('http://nowhere.invalid/data')", packages=()),
    # what the generated script says itself
    "world_mismatch--planned": generated('WORLD_SIZE=3 "$PYTHON" train.py'),
    "batch_equation": generated('"$PYTHON" train.py --per_device_batch_size 3'),
    "no_data--samples": generated('"$PYTHON" train.py --n_samples 0'),
    "nothing_counts": generated(
        "sed -i 's/return batch, sum(counted)/return batch, 0/' task.py && \"$PYTHON\" train.py"
    ),
    "nothing_to_learn": generated(
        "sed -i 's/return (errors.square/return 0 * (errors.square/' task.py && \"$PYTHON\" train.py"
    ),
    "nan_loss--generated": generated(
        'sed -i \'s/return (errors.square/return float("nan") * (errors.square/\' task.py && "$PYTHON" train.py'
    ),
    "nan_gradient": generated(
        "sed -i 's/return (errors.square/return (0 * errors).abs().sqrt().sum() + (errors.square/' task.py && "
        '"$PYTHON" train.py'
    ),
    "two_runs": generated('"$PYTHON" train.py --n_steps 1 > first.txt 2>&1; "$PYTHON" train.py'),
    "other_plan": generated(
        '"$PYTHON" train.py --n_steps 1 > first.txt 2>&1; "$PYTHON" train.py --resume auto --seed 7'
    ),
    "already_trained": generated(
        '"$PYTHON" train.py --n_steps 2 > first.txt 2>&1; "$PYTHON" train.py --resume auto --n_steps 1'
    ),
    "unmatched_parameters": Failure(
        "",
        shell=GENERATED.replace("--set data.eval=", "--set data.eval= --set optimizer.rates=lm_head=10")
        + '"$PYTHON" train.py',
        packages=("torch", "accelerate"),
    ),
    "unmatched_frozen": Failure(
        "",
        shell=GENERATED.replace("--set data.eval=", "--set data.eval= --set model.frozen=lm_head")
        + '"$PYTHON" train.py',
        packages=("torch", "accelerate"),
    ),
    "nothing_to_train": Failure(
        "",
        shell=GENERATED.replace("--set data.eval=", "--set data.eval= --set model.frozen=e") + '"$PYTHON" train.py',
        packages=("torch", "accelerate"),
    ),
    "muon_without_matrices": Failure(
        "",
        shell=GENERATED.replace("--set data.eval=", "--set data.eval= --set optimizer.name=muon")
        + "sed -i 's/self.blocks(self.embed(inputs))/inputs/; s/nn.Linear(config.hidden_size, 1)/"
        "nn.Linear(config.n_features, 1)/; /self.embed =/d; /self.blocks =/d' task.py && "
        '"$PYTHON" train.py',
        packages=("torch", "accelerate"),
    ),
    "unknown_metric": Failure(
        "",
        shell=GENERATED.replace(
            "--set data.eval=",
            "--set data.eval=embedded --set evaluation.best_metric=eval_ndcg --set evaluation.best_mode=max",
        )
        + '"$PYTHON" train.py',
        packages=("torch", "accelerate"),
    ),
    "malformed_data--table": Failure(
        "",
        packages=("transformers",),
        shell=(
            GENERATED.replace("task=custom", "task=causal_lm")
            + 'printf "words\\none\\n" > t.csv && "$PYTHON" train.py '
            "--train_data t.csv"
        ),
    ),
    "malformed_data--conversation": Failure(
        "",
        packages=("transformers",),
        shell=(
            GENERATED.replace("task=custom", "task=sft")
            + """echo '{"messages": [{"role": "assistant", "content": null}]}' > t.jsonl && "$PYTHON" train.py """
            "--train_data t.jsonl"
        ),
    ),
    "malformed_data--labels": Failure(
        "",
        packages=("transformers",),
        shell=(
            GENERATED.replace("task=custom", "task=text_classification")
            + """echo '{"text": "one", "label": 0.5}' > t.jsonl && "$PYTHON" train.py --train_data t.jsonl"""
        ),
    ),
    "disk_full--generated": generated(
        "unshare -m sh -c 'mkdir output && mount -t tmpfs -o size=64k tmpfs output && \"$PYTHON\" train.py'"
    ),
    # the model's arithmetic
    "dtype": Failure("import torch\ntorch.nn.Linear(2, 2)(torch.ones(2, 2, dtype=torch.float16))"),
    "shape": Failure("import torch\ntorch.nn.Linear(4, 5)(torch.ones(2, 3))"),
    "shape--broadcast": Failure("import torch\ntorch.ones(3) + torch.ones(4)"),
    "index_range": Failure("import torch\ntorch.nn.Embedding(10, 2)(torch.tensor([10]))"),
    "label_range": Failure("import torch\ntorch.nn.functional.cross_entropy(torch.ones(1, 5), torch.tensor([7]))"),
    "graph_twice": Failure(
        "import torch\nx = torch.ones(1, requires_grad=True)\ny = x * x\ny.backward()\ny.backward()"
    ),
    "inplace": Failure("import torch\nx = torch.ones(1, requires_grad=True)\ny = x.sigmoid()\ny += 1\ny.backward()"),
    "recomputed": Failure(RECOMPUTED.format(change="cache.append(x); x = torch.cat(cache)")),
    "recomputed--number": Failure(RECOMPUTED.format(change="cache or cache.append(x.exp()); x = x * len(cache)")),
    "no_gradient": Failure("import torch\ntorch.nn.Linear(2, 2).requires_grad_(False)(torch.ones(2)).sum().backward()"),
    "no_cuda": Failure("import torch\ntorch.ones(1, device='cuda')"),
    "device_mismatch": Failure(
        "import torch\ntorch.ones(2) + torch.ones(2, device='meta')\n"
        "torch.nn.Linear(2, 2)(torch.ones(2, device='meta'))"
    ),
    "nan_loss": Failure(
        "raise SystemExit('update 12: the loss is nan; the newest checkpoint is from before')", packages=()
    ),
    "scaler_collapse": Failure(
        "import torch, deepspeed\ndeepspeed.init_distributed('gloo')\n"
        "from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler\n"
        "scaler = DynamicLossScaler(init_scale=4, scale_window=1000, min_scale=1,"
        " delayed_shift=1, consecutive_hysteresis=False, raise_error_at_min_scale=True, dtype=torch.half)\n"
        "for _ in range(9): scaler.update_scale(True)",
        packages=("torch", "deepspeed"),
        env=ONE_RANK,
    ),
    "unscale_fp16": Failure(
        "import torch\n"
        "w = torch.ones(1, dtype=torch.float16, requires_grad=True)\n"
        "o, s = torch.optim.SGD([w], lr=1), torch.amp.GradScaler('cpu')\n"
        "s.scale((w * 2).sum()).backward()\ns.unscale_(o)"
    ),
    "compile": Failure(
        "import torch\n"
        "def broken(graph, inputs): raise RuntimeError('no such instruction')\n"
        "torch.compile(lambda x: x + 1, backend=broken)(torch.ones(1))"
    ),
    # packages and building
    "missing_package": Failure("import peftt", packages=()),
    "wrong_version": Failure("from transformers import AdamW", packages=("transformers",)),
    "wrong_version--argument": Failure(
        "from transformers import TrainingArguments\nTrainingArguments('x', evaluation_strategy='no')",
        packages=("transformers",),
    ),
    "wrong_version--attribute": Failure("import torch\ntorch.cuda.amp.nothing\n"),
    "unknown_architecture": Failure(
        "import json, os\nfrom transformers import AutoConfig\nos.makedirs('m')\n"
        "json.dump({'model_type': 'newmodel'}, open('m/config.json', 'w'))\nAutoConfig.from_pretrained('m')",
        packages=("transformers",),
    ),
    "cuda_home": Failure("import torch.utils.cpp_extension as c\nc._join_cuda_home('bin', 'nvcc')"),
    "no_compiler": Failure(
        "import torch.utils.cpp_extension as c\nc.load_inline('x', 'int f() { return 1; }', functions='f')",
        env={"CXX": "/nowhere/c++", "TORCH_EXTENSIONS_DIR": "ext"},
    ),
    "build_failed": Failure(
        "import torch.utils.cpp_extension as c\nc.load_inline('cpu_adam', 'int f() { return x; }', functions='f')",
        env={"TORCH_EXTENSIONS_DIR": "ext"},
    ),
    "missing_header--extension": Failure(
        "import torch.utils.cpp_extension as c\nc.load_inline('cpu_adam', '#include <Pythonn.h>', functions=[])",
        env={"TORCH_EXTENSIONS_DIR": "ext"},
    ),
    "broken_library": Failure(
        "import os, subprocess\nopen('a.c', 'w').write('int missing(void); int PyInit_broken(void) { return missing(); }')\n"
        "subprocess.run(['cc', '-shared', '-fPIC', '-o', 'broken.so', 'a.c'], check=True)\nimport broken",
        packages=(),
    ),
    # DeepSpeed
    "deepspeed_batch": Failure(
        "import deepspeed\nfrom deepspeed.runtime.config import DeepSpeedConfig\n"
        "DeepSpeedConfig({'train_batch_size': 8, 'train_micro_batch_size_per_gpu': 4, 'gradient_accumulation_steps': 4})",
        env=ONE_RANK,
        packages=("torch", "deepspeed"),
    ),
    "deepspeed_config": Failure(
        "import deepspeed\nfrom deepspeed.runtime.config import DeepSpeedConfig\n"
        "DeepSpeedConfig({'train_micro_batch_size_per_gpu': 4, 'zero_optimization': {'stage': 2, 'overlap_com': True}})",
        env=ONE_RANK,
        packages=("torch", "deepspeed"),
    ),
    "no_sync_zero": Failure(TINY_ENGINE + "with engine.no_sync(): pass", env=ONE_RANK, packages=("torch", "deepspeed")),
    "cpu_adam": Failure(
        "import torch, deepspeed\nfrom deepspeed.ops.adam import DeepSpeedCPUAdam\n"
        "DeepSpeedCPUAdam([torch.nn.Parameter(torch.ones(2))])",
        env={"CXX": "/nowhere/c++", "TORCH_EXTENSIONS_DIR": "ext", "DS_ACCELERATOR": "cpu"},
        packages=("torch", "deepspeed"),
    ),
    # the hub, data, files
    "hub_unreachable": Failure(
        "from transformers import AutoModelForCausalLM\nAutoModelForCausalLM.from_pretrained('org/model')",
        env={"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_OFFLINE": "0"},
        packages=("transformers", "huggingface_hub"),
    ),
    "hub_unreachable--offline": Failure(
        "from transformers import AutoModelForCausalLM\nAutoModelForCausalLM.from_pretrained('org/model')",
        env={"HF_HUB_OFFLINE": "1"},
        packages=("transformers", "huggingface_hub"),
    ),
    "hub_gated": Failure(
        HUB.format(
            status=403,
            code="GatedRepo",
            repo="org/gated",
            message="Access to model org/gated is restricted and you are not in the authorized list.",
        ),
        packages=("transformers", "huggingface_hub"),
    ),
    "hub_missing": Failure(
        HUB.format(status=404, code="RepoNotFound", message="Repository not found", repo="org/nothing"),
        packages=("transformers", "huggingface_hub"),
    ),
    "pad_token": Failure(
        "from tokenizers import Tokenizer, models\nfrom transformers import PreTrainedTokenizerFast\n"
        "t = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({'a': 0}, unk_token='a')))\n"
        "t(['a', 'a'], padding=True)",
        packages=("transformers", "tokenizers"),
    ),
    "file_missing": Failure("open('corpus/train.jsonl')", packages=()),
    "malformed_data": Failure(
        "raise SystemExit('''corpus.jsonl:3: not a JSON object: Expecting value: line 1 column 1 (char 0)''')",
        packages=(),
    ),
    "malformed_data--json": Failure('import json\njson.loads(\'{"text": "a\')', packages=()),
    "malformed_data--encoding": Failure("b'caf\\xe9'.decode('utf-8')", packages=()),
    "no_data": Failure("import torch\ntorch.utils.data.DataLoader([], shuffle=True)"),
    "disk_full": Failure("with open('/dev/full', 'w') as f: f.write('x' * 10**6)", packages=()),
    "disk_full--torch": Failure(
        "import torch\ntorch.save(torch.ones(10**7), 'disk/model.pt')",
        shell="mkdir disk && unshare -m sh -c 'mount -t tmpfs -o size=4m tmpfs disk && \"$PYTHON\" fails.py'",
    ),
    "open_files": Failure(
        "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))\nf = [open('/dev/null') for _ in range(99)]",
        packages=(),
    ),
    "torn_checkpoint": Failure(
        "import torch\ntorch.save(torch.ones(10**5), 'x.pt')\nopen('x.pt', 'r+b').truncate(10**5)\ntorch.load('x.pt')"
    ),
    "torn_checkpoint--safetensors": Failure(
        "import torch\nfrom safetensors.torch import save_file, load_file\nsave_file({'a': torch.ones(10**5)}, 'x')\n"
        "open('x', 'r+b').truncate(10**5)\nload_file('x')",
        packages=("torch", "safetensors"),
    ),
    "other_weights": Failure("import torch\ntorch.nn.Linear(2, 2).load_state_dict(torch.nn.Linear(3, 2).state_dict())"),
    "shared_tensors": Failure(
        "import torch\nfrom safetensors.torch import save_file\nt = torch.ones(4)\nsave_file({'a': t, 'b': t}, 'x')",
        packages=("torch", "safetensors"),
    ),
    "unsafe_checkpoint": Failure(
        "import torch\ntorch.save({'f': torch.nn.Linear(1, 1)}, 'x.pt')\ntorch.load('x.pt', weights_only=True)"
    ),
    "permission": Failure("import os\nos.setuid(65534)\nopen('/etc/shadow')", packages=()),
    "read_only": Failure(
        "open('disk/x', 'w')",
        shell="mkdir disk && unshare -m sh -c 'mount -t tmpfs -o ro tmpfs disk && \"$PYTHON\" fails.py'",
        packages=(),
    ),
    "loader_timeout": Failure(
        "import time, torch\n"
        "class Data(torch.utils.data.Dataset):\n"
        "    def __len__(self): return 8\n"
        "    def __getitem__(self, i): time.sleep(60)\n"
        "for batch in torch.utils.data.DataLoader(Data(), num_workers=1, timeout=1): pass"
    ),
    "interrupted": Failure(
        "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nimport time\ntime.sleep(1)", packages=()
    ),
    "program_missing": Failure("import subprocess\nsubprocess.run(['nvidia-smii', '-L'])", packages=()),
    "missing_package--module": Failure(
        "", shell="accelerate launch --cpu --num_processes 1 -m nothere", packages=("accelerate",)
    ),
    # what a person's own files and habits do
    "shadowed_module": Failure(
        "import torch\nclass Net(torch.nn.Module): pass", shell='mv fails.py torch.py; "$PYTHON" torch.py', packages=()
    ),
    "shadowed_module--builtin": Failure(
        "import random\nrandom.seed(0)", shell='touch random.py; "$PYTHON" fails.py', packages=()
    ),
    "shadowed_module--package": Failure("import torch.nn", shell='touch torch.py; "$PYTHON" fails.py', packages=()),
    "own_import": Failure(
        "from datasets import load_dataset", shell='touch datasets.py; "$PYTHON" fails.py', packages=()
    ),
    "no_answer": Failure("import socket\nsocket.create_connection(('127.0.0.1', 9))", packages=()),
    "no_answer--pipe": Failure(
        "while True: print('y' * 1000)",
        shell='"$PYTHON" fails.py | true',
        packages=(),
    ),
    "killed--spawn": Failure(
        "import os, signal, torch.multiprocessing as mp\n"
        "def work(rank): os.kill(os.getpid(), signal.SIGKILL) if rank else __import__('time').sleep(9)\n"
        "if __name__ == '__main__': mp.spawn(work, nprocs=2)"
    ),
    "deepspeed_alone": Failure(
        "import deepspeed\ndeepspeed.init_distributed()", env={"DS_ACCELERATOR": "cpu"}, packages=("deepspeed",)
    ),
    "fsdp_uniform": Failure(
        GROUP + "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
        "model = torch.nn.Linear(4, 4)\nmodel.bias.requires_grad_(False)\n"
        "FSDP(model, use_orig_params=False, device_id=torch.device('cpu'))",
        env=ONE_RANK,
    ),
    "no_gradient--ddp": Failure(
        GROUP + "torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2).requires_grad_(False))", env=ONE_RANK
    ),
    "package_version": Failure(
        "from transformers import GPT2Config, GPT2LMHeadModel, BitsAndBytesConfig\n"
        "from transformers.quantizers import quantizer_bnb_4bit\n"
        "quantizer_bnb_4bit.is_bitsandbytes_available = lambda *_: False\n"
        "GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=1, n_embd=8)).save_pretrained('m')\n"
        "GPT2LMHeadModel.from_pretrained('m', quantization_config=BitsAndBytesConfig(load_in_4bit=True))",
        packages=("torch", "transformers"),
    ),
    "missing_package--flash": Failure(
        "from transformers import GPT2Config, AutoModelForCausalLM\n"
        "AutoModelForCausalLM.from_config(GPT2Config(n_layer=1), attn_implementation='flash_attention_2')",
        packages=("torch", "transformers"),
    ),
    "remote_code": Failure(
        "import json\nopen('config.json', 'w').write(json.dumps({'model_type': 'mine', 'auto_map': "
        "{'AutoConfig': 'mine.Config', 'AutoModelForCausalLM': 'mine.Model'}}))\n"
        "from transformers import AutoModelForCausalLM\nAutoModelForCausalLM.from_pretrained('.')",
        packages=("transformers",),
    ),
    "hub_file": Failure(
        "from transformers import GPT2Config, AutoModelForCausalLM\nGPT2Config().save_pretrained('m')\n"
        "AutoModelForCausalLM.from_pretrained('m')",
        packages=("transformers",),
    ),
    "hub_busy": Failure(
        HUB.format(status=429, code="", message="Too Many Requests", repo="org/model").replace("offline", ""),
        packages=("transformers", "huggingface_hub"),
    ),
    "sentencepiece": Failure(
        "import json\nopen('tokenizer.model', 'wb').write(b'\\n\\x0e\\n\\x05<unk>')\n"
        "open('tokenizer_config.json', 'w').write(json.dumps({'tokenizer_class': 'LlamaTokenizer'}))\n"
        "open('config.json', 'w').write(json.dumps({'model_type': 'llama'}))\n"
        "from transformers import AutoTokenizer\nAutoTokenizer.from_pretrained('.')",
        packages=("transformers",),
    ),
    "tokenizer_unreadable": Failure(
        'open(\'tokenizer.json\', \'w\').write(\'{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [],'
        ' "normalizer": null, "pre_tokenizer": null, "post_processor": null, "decoder": null,'
        ' "model": {"type": "New"}}\')\n'
        "from transformers import PreTrainedTokenizerFast\nPreTrainedTokenizerFast.from_pretrained('.')",
        packages=("transformers", "tokenizers"),
    ),
    "chat_template": Failure(
        "from tokenizers import Tokenizer, models\nfrom transformers import PreTrainedTokenizerFast\n"
        "t = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({'a': 0}, unk_token='a')))\n"
        "t.apply_chat_template([{'role': 'user', 'content': 'a'}])",
        packages=("transformers", "tokenizers"),
    ),
    "ragged_batch": Failure(
        "from tokenizers import Tokenizer, models, pre_tokenizers\nfrom transformers import PreTrainedTokenizerFast\n"
        "t = Tokenizer(models.WordLevel({'a': 0}, unk_token='a'))\nt.pre_tokenizer = pre_tokenizers.Whitespace()\n"
        "PreTrainedTokenizerFast(tokenizer_object=t)(['a', 'a a'], return_tensors='pt')",
        packages=("transformers", "tokenizers"),
    ),
    "no_labels": Failure(
        "import torch\nfrom transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments\n"
        "model = GPT2LMHeadModel(GPT2Config(vocab_size=9, n_layer=1, n_head=1, n_embd=8))\n"
        "data = [{'input_ids': torch.ones(4, dtype=torch.long)}] * 4\n"
        "Trainer(model, TrainingArguments('out', use_cpu=True, report_to='none'), train_dataset=data).train()",
        packages=("torch", "transformers"),
    ),
    "dataset_script": Failure(
        "from datasets import load_dataset\nopen('words.py', 'w').write('')\nload_dataset('./words.py')",
        packages=("datasets",),
    ),
    "map_columns": Failure(
        "from datasets import Dataset\n"
        "Dataset.from_dict({'text': ['a', 'b']}).map(lambda b: {'input_ids': [1, 2, 3]}, batched=True)",
        packages=("datasets",),
    ),
    "malformed_data--picture": Failure(
        "import io\nfrom PIL import Image\nImage.open(io.BytesIO(b'x'))", packages=("pillow",)
    ),
    "lora_targets": Failure(
        "import torch\nfrom peft import LoraConfig, get_peft_model\n"
        "get_peft_model(torch.nn.Sequential(torch.nn.Linear(2, 2)), LoraConfig(target_modules=['q_proj', 'v_proj']))",
        packages=("torch", "peft"),
    ),
    "colossal_device": Failure(
        BOOSTER.format(plugin="LowLevelZeroPlugin", arguments="precision='fp32'") + BOOST, env=ONE_RANK, **COLOSSAL
    ),
    "colossal_device--gemini": Failure(
        "from colossalai.nn.optimizer import FusedAdam\nimport torch\nFusedAdam(torch.nn.Linear(2, 2).parameters())",
        **COLOSSAL,
    ),
    "colossal_precision": Failure(
        BOOSTER.format(plugin="TorchDDPPlugin", arguments="").replace("()", "(), mixed_precision='bf16'"),
        env=ONE_RANK,
        **COLOSSAL,
    ),
    "colossal_precision--gemini": Failure(
        BOOSTER.format(plugin="GeminiPlugin", arguments="precision='no'"), env=ONE_RANK, **COLOSSAL
    ),
    "colossal_precision--zero": Failure(
        BOOSTER.format(plugin="LowLevelZeroPlugin", arguments="precision='fp8'"), env=ONE_RANK, **COLOSSAL
    ),
    "colossal_optimizer": Failure(
        BOOSTER.format(plugin="GeminiPlugin", arguments="precision='bf16'") + BOOST,
        **COLOSSAL,
        env={**ONE_RANK, "TRAINWIZ_COLOSSALAI_STANDIN": "cpu", "PYTHONPATH": f"{LOGS.parent}/standin_colossalai"},
    ),
    "colossal_no_sync": Failure(
        BOOSTER.format(plugin="GeminiPlugin", arguments="") + "with booster.no_sync(model): pass",
        env=ONE_RANK,
        **COLOSSAL,
    ),
    "colossal_fsdp_optimizer": Failure(
        "import torch\ntorch.cuda.current_device = lambda: torch.device('cpu')\n"
        + BOOSTER.format(plugin="TorchFSDPPlugin", arguments="")
        + "booster.boost(model, torch.optim.AdamW(model.parameters()))",
        env=ONE_RANK,
        **COLOSSAL,
    ),
    "colossal_launcher": Failure("import colossalai\ncolossalai.launch_from_torch()", **COLOSSAL),
    "unknown--deepspeed": Failure(
        "import os, time\nif os.environ['RANK'] == '1': raise ValueError('the second rank is wrong')\ntime.sleep(9)",
        shell="deepspeed --num_gpus 2 fails.py",
        env={"DS_ACCELERATOR": "cpu"},
        packages=("deepspeed",),
    ),
    "unknown--torchrun": Failure(
        GROUP + "import time\nif rank == 1: raise ValueError('the second rank is wrong')\ndist.barrier()", ranks=2
    ),
}


def produce(failure: Failure) -> str:
    """Run one and return its log, with a first line that says what it ran on."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "fails.py").write_text(failure.program)
        kept = {k: os.environ[k] for k in ("PATH", "HOME", "LANG", "PYTHONPATH") if k in os.environ}
        environ = {
            **kept,
            "PYTHON": sys.executable,
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            "NO_COLOR": "1",
            **failure.env,
        }
        environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environ.get('PATH', '')}"
        argv = ["bash", "-c", failure.shell]
        if failure.ranks:
            argv = [
                sys.executable,
                "-m",
                "torch.distributed.run",
                f"--nproc_per_node={failure.ranks}",
                "--master_port=29615",
                "fails.py",
            ]
        done = subprocess.run(
            argv, cwd=folder, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120, check=False
        )
        said = _anonymous(done.stdout.decode(errors="replace"), folder)
    lines = said.splitlines()
    if len(lines) > _KEPT_LINES:
        lines = [*lines[:40], "…", *lines[-(_KEPT_LINES - 40) :]]
    versions = ", ".join([f"Python {platform.python_version()}", *(f"{p} {version(p)}" for p in failure.packages)])
    return "\n".join([f"# ran with {versions}; exit code {done.returncode}", *lines, ""])


def _anonymous(said: str, folder: str) -> str:
    said = (
        said.replace(str(Path(sys.prefix)), "/venv").replace(folder, "/project").replace(os.uname().nodename, "node0")
    )
    said = re.sub(r"\n+$", "", said)
    return re.sub(r"[^\n]*warn[^\n]*pynvml[^\n]*\n", "", said)


def main() -> None:
    """Make the logs named on the command line, or all."""
    LOGS.mkdir(exist_ok=True)
    for name in sys.argv[1:] or FAILURES:
        try:
            said = produce(FAILURES[name])
        except subprocess.TimeoutExpired:
            print(f"{name}: did not end", file=sys.stderr)
            continue
        (LOGS / f"{name}.log").write_text(said)
        print(f"{name}: {said.splitlines()[-1][:150]}")


if __name__ == "__main__":
    main()
