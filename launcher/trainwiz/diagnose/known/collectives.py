"""Communication between ranks: collectives, and the network."""

from __future__ import annotations

from trainwiz.diagnose.signature import Signature

TIER = 4
SIGNATURES = {
    "backend_device": Signature(
        r"tensors passed to accelerate\.utils\.operations\.\w+ were not on the (?P<device>\w+)",
        r"No backend type associated with device type (?P<device>\w+)",
        r"RuntimeError: Tensors must be (?P<device>CUDA) and dense",
        r"(?P<device>CUDA) tensor detected and the MPI used doesn't have CUDA-aware MPI support",
        cause="a collective got a tensor on a device that its process group does not support ({device})",
        remedy="NCCL only supports GPUs: move the tensor to the rank's GPU, or create the group for both: "
        "init_process_group('cpu:gloo,cuda:nccl')",
    ),
    "duplicate_gpu": Signature(
        r"Duplicate GPU detected : rank (?P<one>\d+) and rank (?P<other>\d+)",
        cause="ranks {one} and {other} use the same GPU",
        remedy="set machine.num_processes to at most the number of GPUs in `nvidia-smi -L`; run: trainwiz doctor",
    ),
    "wrong_interface": Signature(
        r"Unable to find address for: (?P<interface>\S+)",
        r"Unable to find interface for: \[?(?P<interface>[^\s\]]+)",
        r"Bootstrap : no socket interface found(?P<interface>)",
        r"WARN Socket creation failed : Address family not supported by protocol(?P<interface>)",
        cause="this machine does not have the configured network interface {interface}",
        remedy="to list the interfaces, run `ip -brief address`; set GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME to one "
        "of them, or unset both",
    ),
    "address_families": Signature(
        r"ss1\.ss_family == ss2\.ss_family",
        cause="one rank's host name resolves to an IPv4 address and another's to IPv6; Gloo cannot connect them",
        remedy="set GLOO_SOCKET_IFNAME to the same network on each machine, and give each host name one kind of "
        "address (getent ahosts NAME, /etc/hosts)",
    ),
    "unused_parameters": Signature(
        r"Expected to have finished reduction in the prior iteration before starting a new one",
        r"LightningModule has parameters that were not used in producing the loss",
        cause="DDP is waiting for gradients of parameters that the loss does not use",
        remedy="use their output in the loss, set requires_grad_(False) on them, or set find_unused_parameters=True",
    ),
    "ready_twice": Signature(
        r"Expected to mark a variable ready only once|has been marked as ready twice",
        r"The parameter \d+ has already been reduced",
        cause="a parameter got two gradients in one backward pass; DDP can reduce only one",
        remedy="use gradient checkpointing with use_reentrant=False; call the wrapped model once per backward",
    ),
    "models_differ": Signature(
        r"DDP expects same model across all ranks",
        r"appears not to match (?:sizes|strides) of the same param in process 0",
        cause="the ranks built different models",
        remedy="build the model only from the configuration and one shared seed, never from a rank's own data",
    ),
    "collective_mismatch": Signature(
        r"NCCL WARN Mismatched collective detected",
        r"Detected mismatch between collectives on ranks",
        r"Mismatch between collective operation types",
        r"op\.preamble\.length <= op\.nbytes",
        r"NCCL WARN Your program may be hanging, this may be caused by a collective mismatch",
        r"NCCL WARN .*message truncated ?: receiving \d+ bytes instead of \d+",
        r"DistributedOperationException: Cannot apply desired operation due to shape mismatches",
        cause="the ranks called different collectives, or the same collective with different shapes",
        remedy="look for code that runs a collective (save, gather, log) only on some ranks; to see both collectives, "
        "run: TORCH_DISTRIBUTED_DEBUG=DETAIL trainwiz launch",
    ),
    "collectives_apart": Signature(
        r"\[Rank (?P<first>\d+)\] Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=(\d+), "
        r"OpType=(?P<one>(?!COALESCED)\w+, NumelIn=\d+), [^\n]*(?:\n[^\n]*){0,40}?\[Rank "
        r"(?P<second>(?!(?P=first)\])\d+)\] Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=\2, "
        r"OpType=(?P<other>(?!(?P=one),)\w+, NumelIn=\d+),",
        cause="the ranks called different collectives: rank {first} waits in {one}, rank {second} in {other}",
        remedy="look for code that only some ranks run, or not equally often: an evaluation or a save behind a "
        "condition, loaders with different numbers of batches, a break by a rank's own loss; to see both calls, run: "
        "TORCH_DISTRIBUTED_DEBUG=DETAIL trainwiz launch",
        refines="collective_timeout",
    ),
    "collective_timeout": Signature(
        r"[Cc]aught collective operation timeout:\s+WorkNCCL\((?:SeqNum=\d+, )?OpType=(?P<operation>\w+)",
        r"Work WorkNCCL\((?:SeqNum=\d+, )?OpType=(?P<operation>\w+)[^)\n]*\(ms\)=\d+\) timed out in blocking wait",
        r"Timed out waiting \d+ms for (?P<operation>\w+) operation to complete",
        r"Application timeout caused pair closure(?P<operation>)",
        r"due to ProcessGroupNCCL watchdog hang(?P<operation>)",
        r"RuntimeError: Watchdog caught collective operation timeout(?P<operation>)",
        r"The wait execution of the Notify register times out\. .*?tag\[(?P<operation>[A-Za-z]+)",
        r"Getting socket times out\. Reason: Remote Rank did not send the data in time(?P<operation>)",
        cause="a rank timed out: another rank was slow, stuck or gone during the collective {operation}",
        remedy="compare the ranks' last log lines to find the rank that is somewhere else (evaluation, saving, an "
        "uneven loader); to record each rank's collectives, run: TORCH_NCCL_TRACE_BUFFER_SIZE=2000 "
        "TORCH_NCCL_DUMP_ON_TIMEOUT=1 trainwiz launch; then `trainwiz diagnose FOLDER` compares the dumps "
        "(/tmp/nccl_trace_rank_0 …)",
        transient=None,
    ),
    "npu_timeout": Signature(
        r"reason=\[(?P<problem>(?:stream sync|task|event sync) timeout)\]",
        r"NPU (?:warning|error), error code is (?P<problem>507046|107020)",
        cause="an NPU waited longer than its limit for a task to end ({problem}); usually another rank did not come to "
        "the same collective",
        remedy="find the rank whose log or plog/ (in ~/ascend/log) has another error before this one; if all ranks "
        "only wait, a step that one rank does alone takes too long: raise HCCL_EXEC_TIMEOUT (seconds) on all ranks",
        transient=None,
    ),
    "infiniband_resources": Signature(
        r"WARN .*(?P<problem>Call to ibv_(?:create|alloc|open|reg)_\w+ failed.*)$",
        cause="NCCL cannot create what it needs on the InfiniBand device: {problem}",
        remedy="raise the limit of locked memory: run ulimit -l unlimited before the launch (docker: --ulimit "
        "memlock=-1; Slurm: PropagateResourceLimits); give a container /dev/infiniband; NCCL_IB_DISABLE=1 shows "
        "whether it is InfiniBand",
        transient=None,
    ),
    "nccl_system": Signature(
        r"(?:unhand?led (?:system|cuda) error|nccl(?:System|UnhandledCuda)Error|"
        r"ncclInternalError(?![^\n]*\nLast error:\n[^\n]*(?:[Ss]ocket|NET/|Net : |remote peer)))[^\n]*"
        r"(?:(?:\n(?!Last error)[^\n]+)?\nLast error:\n(?P<problem>[^\n]+))?",
        r"NCCL error in: [^\n]*, (?P<problem>internal error)(?: - please report[^\n]*|, NCCL[^\n]*)$"
        r"(?!\nncclInternalError)",
        r"RuntimeError: NCCL error in: (?P<problem>\w+)$",
        r"NCCL WARN (?P<problem>Error : ring \d+ does not .+)$",
        r"NCCL WARN (?P<problem>(?:cuda|hip)\w+ failed ?: [^\n]+)",
        r"NCCL WARN (?:Cuda|HIP) failure (?:\d+ )?'(?P<problem>[^'\n]+)'",
        r"NCCL WARN (?P<problem>Could not find real path of /sys/\S+)",
        r"NCCL error \S+ '(?P<problem>(?:internal|unhandled \w+|remote process) error)[^'\n]*'",
        r"Test NCCL failure \S+ '(?P<problem>[^'\n]+)'",
        r"RuntimeError: NCCL Error \d+: (?P<problem>(?:internal|unhandled \w+|remote process) error)[^\n]*",
        cause="NCCL failed because of the network, memory or a driver: {problem}",
        remedy="to see which, run: NCCL_DEBUG=INFO trainwiz launch; then select the network with NCCL_SOCKET_IFNAME, "
        "or test with NCCL_IB_DISABLE=1 or NCCL_P2P_DISABLE=1",
        transient=None,
    ),
    "ccl_system": Signature(
        r"RuntimeError: (?P<library>MCCL|CNCL|RCCL|BKCL) error in: [^\n]*, (?P<problem>[^\n]+)$",
        r"RuntimeError: (?P<library>oneCCL): (?P<problem>[^\n]+)$",
        cause="the ranks' communication library, {library}, failed: {problem}",
        remedy="read the lines before it, and the other ranks' logs for an earlier failure; test one machine, then "
        "two; check the limit of locked memory (ulimit -l) and the selected network",
        transient=None,
    ),
    "hccl_busy": Signature(
        r"Failed to initialize the HCCP process\. Reason: Maybe the last training process is running",
        cause="a process of an earlier training still holds the NPU",
        remedy="end it (npu-smi info shows its process id), wait ten seconds, and launch again",
        transient=True,
    ),
    "hccl_system": Signature(
        r"RuntimeError: \[ERROR\] HCCL error in: (?P<problem>\S+)",
        r"HCCL function error: (?P<problem>.+)$",
        r"OPS function error: (?P<problem>Hccl\w+, error code is \d+)(?!.*(?:\n.*){0,4}Getting socket times out)",
        cause="HCCL, the communication of the NPUs, failed: {problem}",
        remedy="read the lines with EI or EJ codes below it, and plog/ in ~/ascend/log of the rank that failed first; "
        "to see more, run: ASCEND_GLOBAL_LOG_LEVEL=1 ASCEND_SLOG_PRINT_TO_STDOUT=1 trainwiz launch",
        transient=None,
    ),
    "no_parent_group": Signature(
        r"Parent communicator missing in eager initialization mode",
        cause="send or recv was called before NCCL's communicator of all ranks was created",
        remedy="give the device to the process group: init_process_group('nccl', device_id=torch.device('cuda', "
        "LOCAL_RANK)), or run one collective (barrier) first",
    ),
    "nccl_usage": Signature(
        r"NCCL (?:error|Error)[^\n]*(?:invalid (?:argument|usage))|ncclInvalid(?:Argument|Usage)",
        cause="NCCL was used incorrectly: two ranks on one GPU, tensors that are not on the GPU, or a world size "
        "that differs from the number of ranks that started",
        remedy="call torch.cuda.set_device(LOCAL_RANK) first, and compare WORLD_SIZE with the ranks that run; to see "
        "more, run: NCCL_DEBUG=WARN trainwiz launch",
    ),
    "port_in_use": Signature(
        r"EADDRINUSE",
        r"[Aa]ddress already in use",
        cause="the rendezvous port is used by another program",
        remedy="with one machine, set machine.main_process_port to 0; to see which program is listening, run `ss "
        "-ltnp`",
        transient=True,
        plan_change="any_port",
    ),
    "address_unknown": Signature(
        r"The IPv[46] network addresses of \((?P<address>[^,)]+), \w+\) cannot be retrieved",
        r"gai error: -\d+(?P<address>)",
        r"socket\.gaierror: \[Errno -\d+\](?P<address>)",
        r"ValueError: host not found: (?P<address>(?!$))",
        cause="cannot resolve the hostname of machine 0 {address}",
        remedy="set machine.main_process_ip to an address; to list the addresses of machine 0, run `hostname -I` there",
    ),
    "rendezvous_timeout": Signature(
        r"Timed out after \d+ seconds waiting for clients\.\s+(?P<present>\d+)/(?P<expected>\d+) clients joined",
        r"store based barrier on rank.*world_size=(?P<expected>\d+), (?:worker_count|"
        r"num_workers_joined)=(?P<present>\d+)",
        cause="ranks that joined the rendezvous: {present}; expected: {expected}",
        remedy="start all machines with the same plan; read the logs of those that did not join; if more joined than "
        "expected, another job uses the same address and port",
        transient=None,
    ),
    "address_unreachable": Signature(
        r"The client socket has (?:timed out after \d+ms|failed to connect).*\((?P<address>[^,)]+), (?P<port>\d+)\)",
        r"The client socket has timed out after \S+ while trying to connect to \(?(?P<address>[^,\s]+?)[,:] ?"
        r"(?P<port>\d+)",
        r"connect\(\) timed out\. Original timeout was \d+ ms(?P<address>)(?P<port>)",
        r"No route to host(?P<address>)(?P<port>)|Network is unreachable|Cannot assign requested address",
        cause="cannot connect to machine 0: {address} {port}",
        remedy="check machine.main_process_ip, the port and the firewall; on the other machine, run: `nc -vz "
        "ADDRESS PORT`",
        transient=None,
    ),
    "gloo_mesh": Signature(
        r"[Gg]loo connectFullMesh failed with (?P<problem>.+)$",
        r"[Gg]loo (?P<problem>connectFullMesh) failed",
        cause="gloo could not connect all ranks to each other: {problem}",
        remedy="set GLOO_SOCKET_IFNAME on each machine to the interface that reaches the others (`ip -brief "
        "address`); the machine's name must not resolve to 127.0.1.1 (/etc/hosts), and the firewall must let all "
        "ports pass between the machines; a rank that ended earlier says why in its own log",
        transient=None,
    ),
    "rendezvous_lost": Signature(
        r"Rendezvous(?:Closed|Connection|Timeout)Error",
        # The call that raises it, where a log ends before its name
        r"c10d_rendezvous_backend\.py\", line \d+, in (?:_call_store|_create_tcp_store)$",
        cause="torchrun's rendezvous was closed or is unreachable",
        remedy="find out why another machine ended; then restart all machines at about the same time",
        transient=None,
        secondary=True,
    ),
    "rank_twice": Signature(
        r"rank (?P<rank>\d+) of \d+ ranks has already checked in",
        cause="two processes claim to be rank {rank}",
        remedy="give each machine its own --node_rank, and each process its own RANK; under Slurm, "
        "start one torchrun for "
        "each node, or one task for each GPU, not both",
    ),
    "nccl_network": Signature(
        r"NCCL WARN .*(?P<problem>Call to ibv_\w+ failed.*)$",
        r"NCCL WARN .*(?P<problem>Got completion (?:from peer|with error|error) .+)$",
        r"NCCL WARN .*(?P<problem>Connect to \S+ failed : .+)$",
        r"NCCL WARN .*(?P<problem>Got async (?:\w+[ -])*event ?: "
        r"(?:port error|local catastrophic error|device fatal).*)$",
        cause="NCCL cannot reach another machine: {problem}",
        remedy="check the link with ibstat and ib_write_bw (InfiniBand), or choose the interface "
        "with NCCL_SOCKET_IFNAME; "
        "NCCL_IB_DISABLE=1 shows whether InfiniBand is at fault; or the other rank ended: read its log",
        transient=None,
        secondary=True,
    ),
    "connection_lost": Signature(
        r"(?<!\[Errno 104\] )Connection (?:closed|reset) by (?:remote )?peer",
        r"ncclRemoteError|ncclInternalError",
        r"DistNetworkError|DistStoreError",
        r"RuntimeError: (?:Socket Timeout|NCCL communicator was aborted)|failed to recv, got 0 bytes",
        r"RuntimeError: (?:Broken pipe|Connection timed out|Stop_waiting response is expected|Interrupted system call)",
        r"NCCL error in: [^\n]*remote process exited or there was a network error",
        r"Error: \[[^\]\n]*gloo/transport/[^\]\n]*\]",
        r"got error: (?:Socket Timeout|wait timeout after \d+ms)|TCPStore.*Broken pipe",
        r"(?<!\[Errno 111\] )Connection refused",
        cause="a rank lost its connection to another rank that had ended, or never connected to it",
        remedy="read the logs of the other ranks: one of them failed earlier; with several machines, also check the "
        "network",
        transient=None,
        secondary=True,
    ),
    "no_answer": Signature(
        r"ConnectionRefusedError: \[Errno 111\]|\[WinError 100(?:53|54|60|61)\]|TimeoutError: \[Errno 110\]",
        r"(?:BrokenPipeError|ConnectionResetError|ConnectionAbortedError): \[Errno \d+\]",
        cause="the other end of a connection does not exist or has ended: a server, a program that reads the "
        "script's output, or another training process",
        remedy="find the connection in the traceback; check the logs of the other ranks for an earlier failure",
        transient=None,
        secondary=True,
    ),
}
