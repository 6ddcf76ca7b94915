"""Communication between ranks: collectives, and the network."""

from __future__ import annotations

from trainwiz.diagnose.signature import known
from trainwiz.message import say

TIER = 4
SIGNATURES = (
    known(
        "duplicate_gpu",
        r"Duplicate GPU detected : rank (?P<one>\d+) and rank (?P<other>\d+)",
        cause=say("ranks {one} and {other} use the same GPU"),
        remedy=say("set machine.num_processes to at most the number of GPUs in `nvidia-smi -L`; run: trainwiz doctor"),
    ),
    known(
        "wrong_interface",
        r"Unable to find address for: (?P<interface>\S+)",
        r"Unable to find interface for: \[?(?P<interface>[^\s\]]+)",
        r"Bootstrap : no socket interface found(?P<interface>)",
        cause=say("this machine does not have the configured network interface {interface}"),
        remedy=say(
            "to list the interfaces, run `ip -brief address`; set GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME to one "
            "of them, or unset both"
        ),
    ),
    known(
        "unused_parameters",
        r"Expected to have finished reduction in the prior iteration before starting a new one",
        cause=say("DDP is waiting for gradients of parameters that the loss does not use"),
        remedy=say(
            "use their output in the loss, set requires_grad_(False) on them, or set find_unused_parameters=True"
        ),
    ),
    known(
        "ready_twice",
        r"Expected to mark a variable ready only once",
        cause=say("a parameter got two gradients in one backward pass; DDP can reduce only one"),
        remedy=say("use gradient checkpointing with use_reentrant=False; call the wrapped model once per backward"),
    ),
    known(
        "models_differ",
        r"DDP expects same model across all ranks",
        r"appears not to match (?:sizes|strides) of the same param in process 0",
        cause=say("the ranks built different models"),
        remedy=say("build the model only from the configuration and one shared seed, never from a rank's own data"),
    ),
    known(
        "collective_mismatch",
        r"Detected mismatch between collectives on ranks",
        r"Mismatch between collective operation types",
        r"op\.preamble\.length <= op\.nbytes",
        cause=say("the ranks called different collectives, or the same collective with different shapes"),
        remedy=say(
            "look for code that runs a collective (save, gather, log) only on some ranks; to see both collectives, "
            "run: TORCH_DISTRIBUTED_DEBUG=DETAIL trainwiz launch"
        ),
    ),
    known(
        "collective_timeout",
        r"Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=\d+, OpType=(?P<operation>\w+)",
        r"Timed out waiting \d+ms for (?P<operation>\w+) operation to complete",
        r"Application timeout caused pair closure(?P<operation>)",
        r"due to ProcessGroupNCCL watchdog hang(?P<operation>)",
        cause=say("a rank timed out: another rank was slow, stuck or gone during the collective {operation}"),
        remedy=say(
            "compare the ranks' last log lines to find the rank that is somewhere else (evaluation, saving, an "
            "uneven loader); to record each rank's collectives, run: TORCH_NCCL_TRACE_BUFFER_SIZE=2000 trainwiz "
            "launch"
        ),
        transient=None,
    ),
    known(
        "nccl_system",
        r"(?:unhandled (?:system|cuda) error|nccl(?:System|UnhandledCuda)Error|"
        r"ncclInternalError(?![^\n]*\nLast error:\n[^\n]*(?:[Ss]ocket|NET/)))[^\n]*"
        r"(?:(?:\n(?!Last error)[^\n]+)?\nLast error:\n(?P<problem>[^\n]+))?",
        cause=say("NCCL failed because of the network, memory or a driver: {problem}"),
        remedy=say(
            "to see which, run: NCCL_DEBUG=INFO trainwiz launch; then select the network with NCCL_SOCKET_IFNAME, "
            "or test with NCCL_IB_DISABLE=1 or NCCL_P2P_DISABLE=1"
        ),
        transient=None,
    ),
    known(
        "port_in_use",
        r"EADDRINUSE",
        r"[Aa]ddress already in use",
        cause=say("the rendezvous port is used by another program"),
        remedy=say(
            "with one machine, set machine.main_process_port to 0; to see which program is listening, run `ss -ltnp`"
        ),
        transient=True,
        plan_change="any_port",
    ),
    known(
        "address_unknown",
        r"The IPv[46] network addresses of \((?P<address>[^,)]+), \d+\) cannot be retrieved",
        r"gai error: -\d+(?P<address>)",
        r"socket\.gaierror: \[Errno -\d+\](?P<address>)",
        cause=say("cannot resolve the hostname of machine 0 {address}"),
        remedy=say(
            "set machine.main_process_ip to an address; to list the addresses of machine 0, run `hostname -I` there"
        ),
    ),
    known(
        "rendezvous_timeout",
        r"Timed out after \d+ seconds waiting for clients\. (?P<present>\d+)/(?P<expected>\d+) clients joined",
        r"store based barrier on rank.*world_size=(?P<expected>\d+), worker_count=(?P<present>\d+)",
        cause=say("only {present} of {expected} ranks joined the rendezvous"),
        remedy=say("start all machines with the same plan; read the logs of the machines that did not join"),
        transient=None,
    ),
    known(
        "address_unreachable",
        r"The client socket has (?:timed out after \d+ms|failed to connect).*\((?P<address>[^,)]+), (?P<port>\d+)\)",
        r"No route to host(?P<address>)(?P<port>)|Network is unreachable",
        cause=say("cannot connect to machine 0: {address} {port}"),
        remedy=say(
            "check machine.main_process_ip, the port and the firewall; on the other machine, run: `nc -vz ADDRESS PORT`"
        ),
        transient=None,
    ),
    known(
        "rendezvous_lost",
        r"Rendezvous(?:Closed|Connection|Timeout)Error",
        cause=say("torchrun's rendezvous was closed or is unreachable"),
        remedy=say("find out why another machine ended; then restart all machines at about the same time"),
        transient=None,
        secondary=True,
    ),
    known(
        "connection_lost",
        r"(?<!\[Errno 104\] )Connection (?:closed|reset) by (?:remote )?peer",
        r"ncclRemoteError|ncclInternalError",
        r"DistNetworkError|DistStoreError",
        r"(?<!\[Errno 111\] )Connection refused",
        cause=say("a rank lost its connection to another rank that had ended, or never connected to it"),
        remedy=say(
            "read the logs of the other ranks: one of them failed earlier; with several machines, also check the "
            "network"
        ),
        transient=None,
        secondary=True,
    ),
    known(
        "no_answer",
        r"ConnectionRefusedError: \[Errno 111\]",
        r"(?:BrokenPipeError|ConnectionResetError|ConnectionAbortedError): \[Errno \d+\]",
        cause=say(
            "the other end of a connection does not exist or has ended: a server, a program that reads the "
            "script's output, or another training process"
        ),
        remedy=say("find the connection in the traceback; check the logs of the other ranks for an earlier failure"),
        transient=None,
        secondary=True,
    ),
)
