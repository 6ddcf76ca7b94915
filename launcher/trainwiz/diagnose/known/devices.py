"""GPUs, their driver, and kernels."""

from __future__ import annotations

from trainwiz.diagnose.signature import Signature

TIER = 1
SIGNATURES = {
    "gpu_hardware": Signature(
        r"CUDA error: (?:uncorrectable (?:NVLink )?ECC error|hardware error)",
        r"Cuda failure (?:\d+ )?'[^'\n]*(?:ECC|NVLink) error",
        r"Xid \(PCI:[\w:.]+\): (?:48|62|63|64|74|79|94|95|119|120)\b",
        r"GPU has fallen off the bus|Unable to determine the device handle for GPU",
        cause="a GPU reported a hardware fault",
        remedy="check `nvidia-smi -q -d ECC,PAGE_RETIREMENT` and `dmesg | grep -i xid`; reset that GPU or exclude it "
        "(CUDA_VISIBLE_DEVICES), then run: trainwiz launch --resume",
        transient=None,
    ),
    "device_assert": Signature(
        r"Assertion `(?P<assertion>[^`]+)` failed\.",
        cause="an assertion failed on the GPU ({assertion}): usually a token id or a label is outside the model's "
        "range",
        remedy="compare the largest id with the vocabulary: the model's vocab_size, len(tokenizer); to find the line, "
        "run: CUDA_LAUNCH_BLOCKING=1 trainwiz launch",
    ),
    "device_assert_unknown": Signature(
        r"CUDA error: device-side assert triggered",
        cause="an assertion failed on the GPU: usually a token id or a label is outside the model's range",
        remedy="to find the line, run: CUDA_LAUNCH_BLOCKING=1 trainwiz launch; the error message is clearer on the CPU",
    ),
    "illegal_memory": Signature(
        r"CUDA error: (?:an illegal memory access was encountered|misaligned address|unspecified launch failure)",
        r"Xid \(PCI:[\w:.]+\): (?:13|31|43)\b",
        cause="a GPU kernel accessed invalid memory",
        remedy="to find the operation, run: CUDA_LAUNCH_BLOCKING=1 trainwiz launch; usually an extension (flash-attn, "
        "xformers, your own kernel) does not match the torch build",
        transient=None,
    ),
    "device_ordinal": Signature(
        r"CUDA error: invalid device ordinal",
        cause="a rank requested a GPU that it cannot see: there are more ranks than GPUs",
        remedy="compare machine.num_processes with `nvidia-smi -L` and CUDA_VISIBLE_DEVICES; run: trainwiz doctor",
    ),
    "cuda_library": Signature(
        r"CU(?:BLAS|DNN)_STATUS_(?:NOT_INITIALIZED|EXECUTION_FAILED|INTERNAL_ERROR)",
        r"unable to find an engine to execute this computation",
        cause="cuBLAS or cuDNN failed: usually the GPU memory is full, an earlier operation failed, or the libraries "
        "of another CUDA version were loaded",
        remedy="check the memory with `nvidia-smi`; to find the first operation that failed, run: "
        "CUDA_LAUNCH_BLOCKING=1 trainwiz launch; to avoid other libraries, run: env -u LD_LIBRARY_PATH "
        "trainwiz launch",
        transient=None,
    ),
    "driver_mismatch": Signature(
        r"Driver/library version mismatch",
        r"Error 80[34]: ",
        cause="the running NVIDIA driver and its libraries have different versions",
        remedy="after a driver update, reboot; in a container, remove the image's own libcuda (cuda-compat) from "
        "LD_LIBRARY_PATH",
    ),
    "fabric_manager": Signature(
        r"Error 802: system not yet initialized|CUDA error: system not yet initialized",
        cause="the switches between the GPUs (NVSwitch) are not initialized",
        remedy="run systemctl start nvidia-fabricmanager; its version must match the driver exactly",
    ),
    "gpu_busy": Signature(
        r"all CUDA-capable devices are busy or unavailable",
        cause="another process is using the GPU, which allows only one process at a time",
        remedy="find the process with `nvidia-smi`; to allow several processes, run: nvidia-smi -c DEFAULT",
        transient=None,
    ),
    "device_map": Signature(
        r"You can't train a model that has been loaded (?:with `device_map='auto'`|in 8-bit or 4-bit precision)",
        cause="device_map placed the model on specific GPUs, but each rank needs it on its own GPU",
        remedy="remove device_map; for a quantized model: device_map=PartialState().local_process_index",
    ),
    "driver_old": Signature(
        r"The NVIDIA driver on your system is too old",
        r"CUDA driver version is insufficient for CUDA runtime version",
        cause="the NVIDIA driver is too old for torch's CUDA version",
        remedy="update the driver, or install a torch built for an older CUDA (https://pytorch.org/get-started)",
    ),
    "no_kernel": Signature(
        r"no kernel image is available for execution on the device",
        r"CUDA error: invalid device function",
        cause="this torch build, or an extension, does not support this GPU's architecture",
        remedy="to see the GPU and torch's supported architectures, run: trainwiz doctor; install a torch built for "
        "this GPU",
    ),
    "no_cuda": Signature(
        r"Torch not compiled with CUDA enabled",
        r"No CUDA GPUs are available",
        r"Found no NVIDIA driver on your system",
        r"CUDA error: no CUDA-capable device is detected",
        cause="torch finds no GPU",
        remedy="to see why, run: trainwiz doctor (a CPU build of torch, the driver, CUDA_VISIBLE_DEVICES, the "
        "container)",
    ),
    "cuda_fork": Signature(
        r"Cannot re-initialize CUDA in forked subprocess",
        cause="a process that was forked after CUDA was initialized used the GPU",
        remedy="keep tensors on the CPU in the dataset, or give the DataLoader multiprocessing_context='spawn'",
    ),
    "meta_tensor": Signature(
        r"Cannot copy out of meta tensor",
        cause="weights were never loaded: they are on the meta device, without data",
        remedy="load them after building the model: model.to_empty(device=…) then load_state_dict; remove "
        "init_empty_weights and low_cpu_mem_usage, or load the model with from_pretrained",
    ),
    "device_mismatch": Signature(
        r"Expected all tensors to be on the same device",
        r"is on (?:cpu|cuda:\d+|meta) device?,? (?:but )?expected",
        r"Tensor on device \S+ is not on the expected device",
        cause="an operation got tensors on different devices",
        remedy="move tensors created in task.py to the model's device: tensor.to(inputs.device)",
    ),
}
