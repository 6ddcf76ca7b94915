"""Compiles the operators of DeepSpeed that tests use, where that was not done yet: once per machine, a minute each."""

import os

os.environ["DS_ACCELERATOR"] = "cpu"
os.environ["MAX_JOBS"] = "1"  # a core is left to whoever waits meanwhile

from deepspeed.accelerator import get_accelerator

for name in ("ShareMemCommBuilder", "CPUAdamBuilder", "FusedAdamBuilder"):
    get_accelerator().create_op_builder(name).load(verbose=False)
