"""What names of a script mean: imports, kinds of objects, and what an engine prepared."""

from __future__ import annotations

import pytest

from trainwiz import script

RESOLVED = {
    "import torch\ntorch.load()": "torch.load",
    "import torch as t\nt.load()": "torch.load",
    "import torch.nn as nn\nnn.Linear()": "torch.nn.Linear",
    "import torch.distributed\ntorch.distributed.barrier()": "torch.distributed.barrier",
    "import torch.distributed as dist\ndist.barrier()": "torch.distributed.barrier",
    "from torch import load\nload()": "torch.load",
    "from torch import load as read\nread()": "torch.load",
    "from torch.cuda.amp import GradScaler\nGradScaler()": "torch.amp.GradScaler",
    "import torch\ntorch.cuda.amp.GradScaler()": "torch.amp.GradScaler",
    "import torch\ntorch.cuda.amplify()": "torch.cuda.amplify",
    "from torch.utils.data.distributed import DistributedSampler as S\nS()": "torch.utils.data.DistributedSampler",
    "from .data import load\nload()": "load",
    "from . import data\ndata.load()": "data.load",
    "load()": "load",
    "a.b.load()": "a.b.load",
    "f().load()": ".load",
    "x[0].load()": ".load",
    "f()()": "",
}


@pytest.mark.parametrize(("text", "expected"), RESOLVED.items())
def test_resolved(text: str, expected: str) -> None:
    assert script.read("train.py", text).calls[0].name == expected


KINDS = {
    "from accelerate import Accelerator\nit = Accelerator()\nuse(it)": "Accelerator",
    "from accelerate import Accelerator\nuse(accelerator)": "Accelerator",
    "from accelerate import Accelerator\nuse(self.accelerator)": "Accelerator",
    "use(accelerator)": "",
    "from accelerate import Accelerator\na = Accelerator()\nb = a\nuse(b)": "Accelerator",
    "from accelerate import Accelerator\na, b = Accelerator()\nuse(b)": "",
    "from accelerate import Accelerator\na, b = Accelerator(), 3\nuse(a)": "Accelerator",
    "from accelerate import Accelerator\na, b = Accelerator(), 3\nuse(b)": "",
    "import deepspeed\na, b, _, _ = deepspeed.initialize()\nuse(a)": "DeepSpeedEngine",
    "import deepspeed\na, b, _, _ = deepspeed.initialize()\nuse(b)": "",
    "import deepspeed\na = deepspeed.initialize()[0]\nuse(a)": "",
    "import deepspeed\nuse(model_engine)": "DeepSpeedEngine",
    "use(model_engine)": "",
    "use(optimizer)": "Optimizer",
    "use(self.optim)": "Optimizer",
    "use(opt_d)": "Optimizer",
    "use(options)": "",
    "use(lr_scheduler)": "Scheduler",
    "use(scaler)": "GradScaler",
    "use(upscaler)": "",
    "use(optimizer.step)": "",
    "import torch\nuse(torch.optim.AdamW())": "Optimizer",
    "import torch\nx = torch.optim.lr_scheduler.StepLR()\nuse(x)": "Scheduler",
    "from transformers import get_cosine_schedule_with_warmup as g\nx = g()\nuse(x)": "Scheduler",
    "x = get_schedule_later()\nuse(x)": "",
    "from transformers import Trainer\nx = Trainer()\nuse(x)": "Trainer",
    "from trl import SFTTrainer\nx = SFTTrainer()\nuse(x)": "Trainer",
    "x = Trainer()\nuse(x)": "",
    "import evaluate\nx = evaluate.load('f1')\nuse(x)": "Metric",
}


@pytest.mark.parametrize(("text", "expected"), KINDS.items())
def test_kinds(text: str, expected: str) -> None:
    read = script.read("train.py", text)
    assert read.engines.kind(read.called("use")[0].node.args[0]) == expected


ACCELERATE = "from accelerate import Accelerator\naccelerator = Accelerator()\n"
PREPARED = {
    "use(model)": False,
    "model = accelerator.prepare(model)\nuse(model)": True,
    "model = accelerator.prepare_model(model)\nuse(model)": True,
    "model, loader = accelerator.prepare(model, loader)\nuse(loader)": True,
    "model = other.prepare(model)\nuse(model)": False,
    "model = prepare(model)\nuse(model)": False,
    "model = accelerator.prepare(model)\nmodel = bare(model)\nuse(model)": False,
    "model = accelerator.prepare(model)\nagain = model\nuse(again)": True,
    "model = accelerator.prepare(model)\nagain = len(model)\nuse(again)": False,
    "loader = accelerator.prepare(loader)\nrest = accelerator.skip_first_batches(loader, 3)\nuse(rest)": True,
    "rest = accelerator.skip_first_batches(loader, 3)\nuse(rest)": False,
    "use(model)\nmodel = accelerator.prepare(model)": True,
    "def f(model):\n    use(model)\nmodel = accelerator.prepare(model)": True,
    "def f(net):\n    use(net)\nmodel = accelerator.prepare(model)": False,
    "def f():\n    model = bare()\n    use(model)\nmodel = accelerator.prepare(model)": False,
}


@pytest.mark.parametrize(("text", "expected"), PREPARED.items())
def test_prepared(text: str, expected: bool) -> None:
    read = script.read("train.py", ACCELERATE + text)
    assert read.engines.is_prepared(read.called("use")[0].node.args[0]) is expected


DISTRIBUTED = {
    "import accelerate": True,
    "import deepspeed": True,
    "import colossalai": True,
    "from accelerate import Accelerator": True,
    "import accelerated": False,
    "import torch\ntorch.distributed.init_process_group()": True,
    "from torch.nn.parallel import DistributedDataParallel as DDP\nDDP(m)": True,
    "import torch\ntorch.nn.DataParallel(m)": False,
}


@pytest.mark.parametrize(("text", "expected"), DISTRIBUTED.items())
def test_distributed(text: str, expected: bool) -> None:
    assert script.read("train.py", text).engines.distributed is expected
