"""GPUs, their driver, and kernels."""

from __future__ import annotations

from trainwiz.diagnose.signature import Signature

TIER = 1
SIGNATURES = {
    "gpu_hardware": Signature(
        r"UR_RESULT_ERROR_DEVICE_LOST",
        r"uncorrectable (?:NVLink )?ECC error|uncorrectable NVLink error|CUDA error: hardware error",
        r"Invalid access of peer GPU memory over nvlink or a hardware error",
        r"Cuda failure (?:\d+ )?'[^'\n]*(?:ECC|NVLink) error",
        r"Xid \(PCI:[\w:.]+\): (?:48|6[2-4]|74|79|94|95|109|119|12[01]|136|140|14[3-9]|154)\b",
        r"GPU has fallen off the bus|Unable to determine the device handle for GPU",
        cause="a GPU reported a hardware fault",
        remedy="check `nvidia-smi -q -d ECC,PAGE_RETIREMENT` and `dmesg | grep -i xid`; reset that GPU or exclude it "
        "(CUDA_VISIBLE_DEVICES), then run: trainwiz launch --resume",
        transient=None,
    ),
    "device_assert": Signature(
        r"Assertion `(?P<assertion>[^`]+)` failed\.",
        r"\.cu:\d+: .*thread: \[[\d, ]+\] Assertion `(?P<assertion>[^`\n]+)`?$",
        cause="an assertion failed on the GPU ({assertion}): usually a token id or a label is outside the model's "
        "range",
        remedy="compare the largest id with the vocabulary: the model's vocab_size, len(tokenizer); to find the line, "
        "run: CUDA_LAUNCH_BLOCKING=1 trainwiz launch",
    ),
    "device_assert_unknown": Signature(
        r"device-side assert triggered",
        cause="an assertion failed on the GPU: usually a token id or a label is outside the model's range",
        remedy="to find the line, run: CUDA_LAUNCH_BLOCKING=1 trainwiz launch; the error message is clearer on the CPU",
    ),
    "illegal_memory": Signature(
        r"an illegal memory access was encountered",
        r"(?:CUDA error: |cuda runtime error \(\d+\) : |error=\d+ : )(?:misaligned address|unspecified launch failure)",
        r"Xid \(PCI:[\w:.]+\): (?:13|31|43)\b",
        r"Memory access fault by GPU node|HSA_STATUS_ERROR_(?:MEMORY_\w+|EXCEPTION)|CUDA error: hardware stack error",
        r"\bhipError(?:LaunchFailure|IllegalAddress)\b|(?:HIP|MUSA) error: unspecified launch failure",
        cause="a GPU kernel accessed invalid memory",
        remedy="to find the operation, run: CUDA_LAUNCH_BLOCKING=1 trainwiz launch; usually an extension (flash-attn, "
        "xformers, your own kernel) does not match the torch build",
        transient=None,
    ),
    "kernel_refused": Signature(
        r"(?:CUDA|HIP|MUSA) error: (?P<problem>an illegal instruction was encountered|"
        r"invalid (?:argument|configuration argument|program counter|resource handle)|named symbol not found|"
        r"operation not (?:permitted(?! (?:when stream is|on an event last recorded in a) capturing)|supported)|"
        r"too many resources requested for launch|"
        r"too many blocks in cooperative launch|invalid device context|context is destroyed|unsupported limit|"
        r"shared object initialization failed|the operation cannot be performed in the present state)",
        cause="the GPU refused an operation: {problem}",
        remedy="to find the operation, run: CUDA_LAUNCH_BLOCKING=1 trainwiz launch; usually an extension (xformers, "
        "flash-attn, bitsandbytes) or torch itself was built for another GPU or CUDA: run trainwiz doctor; if "
        "the place changes each time, suspect the hardware (overclocking, heat)",
        transient=None,
    ),
    "npu_setup": Signature(
        r"(?:NPU function error: [^\n]*(?:AclSetCompileopt|aclInit|aclrtSetDevice)|NPU_?[Ii]nit\w*:)[^\n]*error code "
        r"is (?P<code>(?!507899)\d+)",
        cause="the NPU could not be set up (code {code}): CANN, the driver and torch_npu do not match, or Python "
        "packages that CANN's compiler needs are missing",
        remedy="run source set_env.sh of the CANN that torch_npu names in its table of versions; pip install numpy "
        "decorator sympy attrs psutil cffi scipy protobuf; npu-smi info must list the chip, and plog/ in "
        "~/ascend/log has the reason",
    ),
    "npu_fault": Signature(
        r"NPU (?:function )?error(?:: .*|, )error code is (?P<code>(?!507899|507046|107020)\d+)",
        r"(?:ACL stream synchronize failed|aclrtSynchronizeStream\w* failed), error code:\s*(?P<code>\d+)",
        cause="an operation on an NPU failed; this was noticed only when the stream was synchronized (code {code})",
        remedy="to see which operation, run: ASCEND_LAUNCH_BLOCKING=1 trainwiz launch; then read plog/ in ~/ascend/log",
        transient=None,
    ),
    "npu_driver": Signature(
        r"reason=\[(?P<problem>driver error:[^\]\n]+)\]",
        cause="the NPU's driver does not respond correctly: {problem}",
        remedy="end the processes that still use it (npu-smi info), reset it (npu-smi set -t reset -i CARD -c 0), "
        "and compare the versions of driver, firmware and CANN; in a container, mount "
        "/usr/local/Ascend/driver and the davinci devices",
        transient=None,
    ),
    "npu_kernels": Signature(
        r"Op (?P<operation>\w+) does not has any binary",
        r"call acln{1,2}(?P<operation>\w+) failed, detail:[^\n]*\n[^\n]*Parse dynamic kernel config fail",
        cause="CANN has no compiled kernel for {operation} on this NPU",
        remedy="install the kernels for this chip in the toolkit's version (Ascend-cann-kernels-910b …), run source "
        "set_env.sh, and use the torch_npu that matches this CANN; if this chip has no such kernel, compute "
        "in another precision",
    ),
    "npu_python": Signature(
        r"EC0010: [^\n]*?Failed to import Python module \[(?P<problem>[^\]\n]+)",
        cause="CANN compiles operators with Python, and a Python module is missing: {problem}",
        remedy="run source set_env.sh of the toolkit in the shell of the launch; if it is still missing, pip install "
        "attrs cloudpickle decorator psutil scipy tornado ml-dtypes absl-py 'numpy<2'",
    ),
    "npu_operation": Signature(
        r"Could not run '(?P<operation>npu::\w+)' with arguments from the 'CPU' backend",
        cause="a tensor that {operation} takes is on the CPU, not on the NPU",
        remedy="move model and batch to the NPU first: .to('npu'), and import torch_npu before the model",
    ),
    "device_ordinal": Signature(
        r"device < num_gpus INTERNAL ASSERT FAILED",
        r"HIP error: invalid device ordinal",
        r"(?:CUDA error: |cuda runtime error \(\d+\) : |\berror=\d+ : |CUDA driver error: )invalid device ordinal",
        r"^AssertionError: Invalid device id",
        cause="a rank requested a GPU that it cannot see: there are more ranks than GPUs",
        remedy="compare machine.num_processes with `nvidia-smi -L` and CUDA_VISIBLE_DEVICES; run: trainwiz doctor",
    ),
    "kernel_library": Signature(
        r"(?P<library>rocblaslt) error: Could not load (?P<file>\S*TensileLibrary\S*)",
        r"(?P<library>MIOpen)\(HIP\): \w+ [^\n]*sqlite_db\.cpp:\d+: [^\n]*?(?P<file>unable to open database file)",
        r"(?P<library>miopen)::Exception'\n[^\n]*(?P<file>Failed creating module)",
        r"AcceleratorError: (?P<library>CUDA|HIP) error: (?P<file>file not found)",
        cause="{library}, which keeps compiled kernels in files, cannot open one: {file}",
        remedy="reinstall torch for this ROCm or CUDA, so that its lib folder is whole; raise ulimit -n; give each "
        "rank a "
        "writable cache on a local disk with room (MIOPEN_USER_DB_PATH, MIOPEN_CUSTOM_CACHE_DIR, TMPDIR)",
        transient=None,
    ),
    "cuda_library": Signature(
        r"CU(?:BLAS|DNN)_STATUS_(?!ALLOC_FAILED|SUCCESS)[A-Z]\w+",
        r"(?:CU(?:SOLVER|SPARSE)|(?:HIP|ROC)\w+)_STATUS_(?!SUCCESS)[A-Z]\w+|CUFFT_(?!SUCCESS)[A-Z]\w+",
        r"\bmiopenStatus(?!Success)\w+",
        r"unable to find an engine to execute this computation|Unable to find a valid cuDNN algorithm",
        r"cublasLt ran into an error",
        cause="cuBLAS or cuDNN failed: usually the GPU memory is full, an earlier operation failed, or the libraries "
        "of another CUDA version were loaded",
        remedy="check the GPU memory with `nvidia-smi`; to find the first operation that failed, run: "
        "CUDA_LAUNCH_BLOCKING=1 trainwiz launch; to avoid other libraries, run: env -u LD_LIBRARY_PATH "
        "trainwiz launch",
        transient=None,
    ),
    "cuda_error": Signature(
        r"(?:CUDA(?: driver| runtime)?|HIP|cuda runtime) error(?: ?\(\d+\))? ?: (?P<problem>[a-z][^\n]{3,100}?)"
        r"(?: at /[^\n]*)?$",
        r"Cuda failure (?:\d+ )?'(?P<problem>[^'\n]+)'",
        cause="the GPU's driver or runtime reports an error: {problem}",
        remedy="to find the operation that failed, run: CUDA_LAUNCH_BLOCKING=1 trainwiz launch; then compare the "
        "driver, "
        "torch's CUDA and the packages with compiled code: run trainwiz doctor",
        transient=None,
        secondary=True,
    ),
    "driver_library": Signature(
        r"INTERNAL ASSERT FAILED at \S*c10/cuda/(?P<file>driver_api\.cpp)",
        cause="torch cannot open the driver's libraries libcuda.so.1 and libnvidia-ml.so.1 ({file})",
        remedy="check `ldconfig -p | grep -e libcuda -e libnvidia-ml`; WSL: add /usr/lib/wsl/lib to LD_LIBRARY_PATH; "
        "container: NVIDIA_DRIVER_CAPABILITIES=compute,utility; expandable_segments in PYTORCH_CUDA_ALLOC_CONF needs "
        "them",
    ),
    "driver_mismatch": Signature(
        r"Driver/library version mismatch",
        r"Error 80[34]: |cuda runtime error \(80[34]\)|error=80[34] :",
        r"(?:forward compatibility was attempted on non supported HW|system has unsupported display driver)",
        cause="the running NVIDIA driver and its libraries have different versions",
        remedy="after a driver update, reboot; in a container, remove the image's own libcuda (cuda-compat) from "
        "LD_LIBRARY_PATH",
        as_warning=True,
    ),
    "fabric_manager": Signature(
        r"(?:Error|Cuda failure) 802\b|\(error 802\)",
        r"(?:CUDA error: |cuda runtime error \(802\) : |error=802 : )system not yet initialized",
        cause="the switches between the GPUs (NVSwitch) are not initialized",
        remedy="run systemctl start nvidia-fabricmanager; its version must match the driver exactly",
        as_warning=True,
    ),
    "peer_mapping": Signature(
        r"peer mapping resources exhausted|cuda runtime error \((?:60|711)\)",
        cause="a process uses more than 8 other GPUs directly; the driver cannot map more",
        remedy="use at most 9 GPUs of a machine in one process (CUDA_VISIBLE_DEVICES), or one process for each GPU "
        "(torchrun, accelerate launch); or test with NCCL_P2P_DISABLE=1",
    ),
    "nvml_lost": Signature(
        r"Failed to initialize NVML: Unknown Error",
        cause="the container lost its access to the GPUs, usually when systemd on the host was reloaded",
        remedy="restart the container; to prevent it, start docker with --device=/dev/nvidia0 … for each GPU, or set "
        "the cgroup driver to cgroupfs",
        transient=None,
    ),
    "generator_device": Signature(
        r"Expected a '(?P<wanted>\w+)' device type for generator but found '(?P<found>\w+)'",
        cause="random numbers are drawn on {wanted} by a generator on {found}; usually the default device was changed",
        remedy="remove torch.set_default_device and set_default_tensor_type, or pass "
        "generator=torch.Generator(device='{wanted}') to the sampler and the DataLoader",
    ),
    "gpu_busy": Signature(
        r"CUDA-capable device(?:s are|\(s\) is/are) busy or unavailable|CUDA error: device already in use",
        cause="another process is using the GPU, which allows only one process at a time",
        remedy="find the process with `nvidia-smi`; to allow several processes, run: nvidia-smi -c DEFAULT",
        transient=None,
    ),
    "container_driver": Signature(
        r"Unexpected error from cudaGetDeviceCount\(\).*Error (?P<code>500): ",
        r"CUDA error: named symbol not found(?P<code>)",
        cause="the driver's library that the container got does not know what CUDA asks it for (error {code}): the "
        "host's driver, Docker and NVIDIA's container toolkit do not fit together",
        remedy="update the NVIDIA driver, Docker Desktop or nvidia-container-toolkit on the host, then restart Docker; "
        "on Windows also WSL: wsl --update",
        as_warning=True,
    ),
    "gpu_not_started": Signature(
        r"(?:CUDA|HIP) error: initialization error",
        r"Unexpected error from cudaGetDeviceCount\(\).*Error (?:2: out of memory|3: initialization error|304: )",
        r"CUDA failed to initialize\.[^\n]*\n[^\n]*\(error (?!80[234])\d+\)|cuda runtime error \(3\) : initialization",
        cause="the GPU could not be initialized in this process",
        remedy="usually it was forked from a process that had used a GPU: start processes with spawn, and use "
        "torch.cuda only in them; otherwise check `nvidia-smi`, and restart the driver or the machine",
        transient=None,
        as_warning=True,
    ),
    "gpu_unknown": Signature(
        r"(?:CUDA|HIP|MUSA) error: unknown error|RuntimeError: UR error$|cuda runtime error \((?:30|"
        r"999)\) : unknown error",
        cause="the driver reports an error that has no name",
        remedy="check `dmesg | grep -i -e xid -e nvrm` and `nvidia-smi`; after a suspend or a driver update, reboot; "
        "under WSL, update the driver of Windows and run wsl --update; in a container, compare the driver with "
        "torch's CUDA",
        transient=None,
        as_warning=True,
    ),
    "graph_capture": Signature(
        r"operation (?:not permitted when stream is capturing|failed due to a previous error during capture)",
        r"operation not permitted on an event last recorded in a capturing stream",
        r"operation would make the legacy stream depend on a capturing|Offset increment outside graph capture",
        r"Cannot prepare for replay during capturing stage|"
        r"Cannot call CUDAGeneratorImpl::\w+ during CUDA graph capture",
        cause="while a CUDA graph was recorded, an operation ran that cannot be part of it",
        remedy="turn CUDA graphs off: torch.compile without mode='reduce-overhead' or 'max-autotune', "
        "enforce_eager=True in vLLM; to keep them, move .item(), .cpu(), printing and random states out of "
        "the recorded part",
    ),
    "operator_on_device": Signature(
        r"The operator '(?P<operation>[\w:.]+)' is not currently (?:implemented|supported) (?:for|"
        r"on) the (?P<device>\w+)",
        r"Cannot convert a (?P<device>MPS) Tensor to (?P<operation>float64)",
        r"Could not run '(?P<operation>aten::[\w.]+)' with arguments from the '(?P<device>\w+)' backend",
        cause="{operation} does not exist on the device {device}",
        remedy="move the tensors of this operation to a device that supports it, or convert them (float64 to "
        "float32, sparse or quantized to dense); on a Mac, PYTORCH_ENABLE_MPS_FALLBACK=1 computes such "
        "operations on the CPU",
    ),
    "kernel_timeout": Signature(
        r"the launch timed out and was terminated",
        cause="a GPU kernel ran longer than the display watchdog allows",
        remedy="train on a GPU without a display, or turn the watchdog off; smaller micro-batches make kernels shorter",
    ),
    "saved_elsewhere": Signature(
        r"Attempting to deserialize object on (?:a )?(?P<device>CUDA device(?: \d+)?)",
        cause="the file was saved from a {device}, which this machine does not have",
        remedy="load it with torch.load(…, map_location='cpu'), and move it to the device afterwards",
    ),
    "tensor_for_numpy": Signature(
        r"can't convert (?P<what>\S+) device type tensor to numpy",
        r"Can't call numpy\(\) on (?P<what>Tensor that requires grad)",
        r"Got unsupported ScalarType (?P<what>BFloat16)",
        cause="NumPy cannot read this tensor ({what})",
        remedy="convert it first: tensor.detach().float().cpu().numpy()",
    ),
    "quantized_moved": Signature(
        r"(?P<call>`?\.(?:to|half|float|cuda)`?|Calling `cuda\(\)`) is not supported for "
        r"[^\n]*(?:quantized|bitsandbytes)",
        r"You cannot cast a (?P<call>\w+) model in a new `dtype`",
        cause="a quantized model is moved or cast as a whole, which its packed weights do not allow ({call})",
        remedy="place it on its device when loading, and do not move it: from_pretrained(…, "
        "device_map=PartialState().local_process_index); delete .to(), .cuda(), .half() and .float() on the "
        "whole model; a newer bitsandbytes allows some of them",
    ),
    "device_map": Signature(
        r"You can't train a model that has been loaded (?:with `device_map='auto'`|"
        r"in [48]-bit (?:or 4-bit )?precision)",
        r"device_map='auto' is not supported when using Trainer",
        r"DistributedDataParallel device_ids and output_device arguments only work with .*type='cuda'.*type='cuda'",
        cause="device_map placed the model on specific GPUs, but each rank needs it on its own GPU",
        remedy="remove device_map; for a quantized model: device_map=PartialState().local_process_index",
    ),
    "driver_old": Signature(
        r"The NVIDIA driver on your system is too old",
        r"CUDA driver version is insufficient for CUDA runtime version",
        r"the provided PTX was compiled with an? unsupported toolchain",
        cause="the NVIDIA driver is too old for torch's CUDA version",
        remedy="update the driver, or install a torch built for an older CUDA (https://pytorch.org/get-started)",
        as_warning=True,
    ),
    "no_kernel": Signature(
        r"rocBLAS error: Cannot read \S*TensileLibrary",
        r"no kernel image is available for execution on the device|(?<!Triton Error \[CUDA\]: )device kernel image is "
        r"invalid",
        r"ptxas fatal *: Value 'sm_\w+' is not defined|nvcc fatal *: Unsupported gpu architecture",
        r"(?:CUDA|HIP) error: (?:invalid device function|no kernel image)",
        r"hipErrorNoBinaryForGpu|CUDA error: a PTX JIT compilation failed",
        r"nvrtc: error: invalid value for --gpu-architecture",
        cause="this torch build, or an extension, does not support this GPU's architecture",
        remedy="to see the GPU and torch's supported architectures, run: trainwiz doctor; install a torch built for "
        "this GPU",
    ),
    "gpu_not_built_for": Signature(
        r"with CUDA capability (?P<capability>sm_\w+) is not compatible with the current PyTorch installation",
        cause="this torch was not built for the GPU ({capability})",
        remedy="install a torch whose CUDA version knows it (sm_100 and sm_120: torch 2.7 or newer, of the index cu128 "
        "or newer); torch.cuda.get_arch_list() shows what the installed one was built for",
        secondary=True,
        as_warning=True,
    ),
    "no_cuda": Signature(
        r"Torch not compiled with CUDA enabled",
        r"No CUDA GPUs are available",
        r"Found no NVIDIA driver on your system",
        r"CUDA error: no CUDA-capable device is detected|no ROCm-capable device is detected",
        r"hipErrorNoDevice\b|CUDA is not available\. +Disabling|[Aa]ttempt?ing to run training on a CPU",
        r"No (?:HIP|XPU) (?:GPUs|devices) are available|ProcessGroupNCCL is only supported with GPUs, no GPUs found",
        r"initializati[\s]*on failed, you might not have a CUDA gpu",
        r"CUDA unknown error - this may be due to an incorrectly set up environment",
        r"(?:GPU|CUDA|MPS|TPU|HPU)Accelerator\W? can not run on your system|No supported gpu backend found",
        cause="torch finds no GPU",
        remedy="to see why, run: trainwiz doctor (a CPU build of torch, the driver, CUDA_VISIBLE_DEVICES, the "
        "container)",
        as_warning=True,
    ),
    "cuda_fork": Signature(
        r"Cannot re-initialize CUDA in forked subprocess",
        r"Lightning can't create new processes if CUDA is already initialized",
        cause="a process that was forked after CUDA was initialized used the GPU",
        remedy="keep tensors on the CPU in the dataset, or give the DataLoader multiprocessing_context='spawn'",
    ),
    "meta_tensor": Signature(
        r"Cannot copy out of meta tensor",
        r"Tensor\.item\(\) cannot be called on meta tensors",
        r"the following were still on meta device|is on the meta device, we need a `value`",
        cause="weights were never loaded: they are on the meta device, without data",
        remedy="load them after building the model: model.to_empty(device=…) then load_state_dict; remove "
        "init_empty_weights and low_cpu_mem_usage, or load the model with from_pretrained",
    ),
    "no_accelerator": Signature(
        r"(?P<problem>Missing XLA configuration|TPU initialization failed[^\n]*|synStatus=\d+ \[[^\]\n]*\] Device "
        r"acquire "
        r"failed)",
        cause="the accelerator cannot be opened: {problem}",
        remedy="another process may use it (lsof /dev/vfio/*, hl-smi), and only one process can open a device; TPUs "
        "need the torch_xla of torch's version and PJRT_DEVICE=TPU, Gaudi the container of its driver",
        transient=None,
    ),
    "device_mismatch": Signature(
        r"Input tensors need to be on the same GPU",
        r"Expected all tensors to be on the same device",
        r"DistributedDataParallel device_ids and output_device arguments only work with .*\{.*device\(type='cpu'\)",
        r"is on (?:cpu|cuda:\d+|meta) device?,? (?:but )?expected",
        r"Tensor on device \S+ is not on the expected device",
        r"Input type \((?:torch\.cuda\.|CUDA)\w+\) and (?:weight|bias) type \((?:torch\.(?!cuda)|CPU)",
        r"Input type \((?:torch\.(?!cuda)|CPU)\w+\) and (?:weight|bias) type \((?:torch\.cuda|CUDA)",
        r"indices should be either on cpu or on the same device",
        r"expected device \S+ (?:and dtype \w+ )?but got device",
        r"module must have its parameters and buffers on device",
        r"Expected object of (?:device|backend) type|Placeholder storage has not been allocated on MPS device",
        r"Input, output and indices must be on the current device",
        r"Pointer argument \(at \d+\) cannot be accessed from Triton",
        cause="an operation got tensors on different devices",
        remedy="move tensors created in task.py to the model's device: tensor.to(inputs.device)",
    ),
}
