"""GPUs, their driver, and kernels."""

from __future__ import annotations

from trainwiz.diagnose.signature import known
from trainwiz.message import say

TIER = 1
SIGNATURES = (
    known(
        "gpu_hardware",
        r"CUDA error: (?:uncorrectable (?:NVLink )?ECC error|hardware error)",
        r"Cuda failure (?:\d+ )?'[^'\n]*(?:ECC|NVLink) error",
        r"Xid \(PCI:[\w:.]+\): (?:48|62|63|64|74|79|94|95|119|120)\b",
        r"GPU has fallen off the bus|Unable to determine the device handle for GPU",
        cause=say("a GPU reported a fault of its own"),
        remedy=say(
            "look at `nvidia-smi -q -d ECC,PAGE_RETIREMENT` and `dmesg | grep -i xid`; reset or leave out that GPU "
            "(CUDA_VISIBLE_DEVICES), then trainwiz launch --resume"
        ),
        transient=None,
    ),
    known(
        "device_assert",
        r"Assertion `(?P<assertion>[^`]+)` failed\.",
        cause=say("a check on the GPU failed ({assertion}): mostly a token id or a label outside the model's range"),
        remedy=say(
            "compare the largest id with the vocabulary: vocab_size of the model, len(tokenizer); "
            "CUDA_LAUNCH_BLOCKING=1 trainwiz launch names the line"
        ),
    ),
    known(
        "device_assert_unknown",
        r"CUDA error: device-side assert triggered",
        cause=say("a check on the GPU failed: mostly a token id or a label outside the model's range"),
        remedy=say("CUDA_LAUNCH_BLOCKING=1 trainwiz launch names the line; on the CPU the message is clearer"),
    ),
    known(
        "illegal_memory",
        r"CUDA error: (?:an illegal memory access was encountered|misaligned address|unspecified launch failure)",
        r"Xid \(PCI:[\w:.]+\): (?:13|31|43)\b",
        cause=say("a kernel on the GPU touched memory that is not its own"),
        remedy=say(
            "CUDA_LAUNCH_BLOCKING=1 trainwiz launch names the operation; mostly an extension (flash-attn, xformers, a "
            "kernel of one's own) that does not fit torch's build"
        ),
        transient=None,
    ),
    known(
        "device_ordinal",
        r"CUDA error: invalid device ordinal",
        cause=say("a rank asked for a GPU that it cannot see: there are more ranks than GPUs"),
        remedy=say("compare machine.num_processes with `nvidia-smi -L` and CUDA_VISIBLE_DEVICES; trainwiz doctor"),
    ),
    known(
        "cuda_library",
        r"CU(?:BLAS|DNN)_STATUS_(?:NOT_INITIALIZED|EXECUTION_FAILED|INTERNAL_ERROR)",
        r"unable to find an engine to execute this computation",
        cause=say(
            "cuBLAS or cuDNN could not work: mostly the GPU's memory is full, an operation before failed, or libraries "
            "of another CUDA were loaded"
        ),
        remedy=say(
            "`nvidia-smi` shows the memory; CUDA_LAUNCH_BLOCKING=1 trainwiz launch names the first that failed; "
            "env -u LD_LIBRARY_PATH trainwiz launch leaves other libraries out"
        ),
        transient=None,
    ),
    known(
        "driver_mismatch",
        r"Driver/library version mismatch",
        r"Error 80[34]: ",
        cause=say("the NVIDIA driver that runs and its libraries are of different versions"),
        remedy=say(
            "reboot after an update of the driver; in a container: leave the image's own libcuda (cuda-compat) out of "
            "LD_LIBRARY_PATH"
        ),
    ),
    known(
        "fabric_manager",
        r"Error 802: system not yet initialized|CUDA error: system not yet initialized",
        cause=say("the switches between the GPUs (NVSwitch) are not set up"),
        remedy=say("systemctl start nvidia-fabricmanager, of exactly the driver's version"),
    ),
    known(
        "gpu_busy",
        r"all CUDA-capable devices are busy or unavailable",
        cause=say("another process holds the GPU, and it takes one at a time"),
        remedy=say("`nvidia-smi` shows who; nvidia-smi -c DEFAULT lets several in"),
        transient=None,
    ),
    known(
        "device_map",
        r"You can't train a model that has been loaded (?:with `device_map='auto'`|in 8-bit or 4-bit precision)",
        cause=say("device_map put the model on certain GPUs, and here every rank needs it on its own"),
        remedy=say("leave device_map out; for a quantized model: device_map=PartialState().local_process_index"),
    ),
    known(
        "driver_old",
        r"The NVIDIA driver on your system is too old",
        r"CUDA driver version is insufficient for CUDA runtime version",
        cause=say("the NVIDIA driver is older than torch's CUDA needs"),
        remedy=say("update the driver, or install a torch built for an older CUDA (https://pytorch.org/get-started)"),
    ),
    known(
        "no_kernel",
        r"no kernel image is available for execution on the device",
        r"CUDA error: invalid device function",
        cause=say("this torch, or an extension, holds no code for this GPU's generation"),
        remedy=say("trainwiz doctor shows the GPU and torch's list; install a torch built for this GPU"),
    ),
    known(
        "no_cuda",
        r"Torch not compiled with CUDA enabled",
        r"No CUDA GPUs are available",
        r"Found no NVIDIA driver on your system",
        r"CUDA error: no CUDA-capable device is detected",
        cause=say("torch sees no GPU here"),
        remedy=say("trainwiz doctor says why (a CPU build of torch, the driver, CUDA_VISIBLE_DEVICES, the container)"),
    ),
    known(
        "cuda_fork",
        r"Cannot re-initialize CUDA in forked subprocess",
        cause=say("a process that was forked after CUDA had started touched the GPU"),
        remedy=say("keep tensors on the CPU in the dataset, or give the DataLoader multiprocessing_context='spawn'"),
    ),
    known(
        "device_mismatch",
        r"Expected all tensors to be on the same device",
        r"is on (?:cpu|cuda:\d+|meta) device?,? (?:but )?expected",
        r"Tensor on device \S+ is not on the expected device",
        r"Cannot copy out of meta tensor",
        cause=say("two tensors on different devices meet in one operation"),
        remedy=say("move what task.py makes itself to the model's device: tensor.to(inputs.device)"),
    ),
)
