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
        remedy=say("machine.num_processes must not be more than the GPUs that `nvidia-smi -L` lists; trainwiz doctor"),
    ),
    known(
        "wrong_interface",
        r"Unable to find address for: (?P<interface>\S+)",
        r"Unable to find interface for: \[?(?P<interface>[^\s\]]+)",
        r"Bootstrap : no socket interface found(?P<interface>)",
        cause=say("the network interface named for the ranks is not on this machine {interface}"),
        remedy=say(
            "`ip -brief address` lists them; set GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME to one, or unset both"
        ),
    ),
    known(
        "unused_parameters",
        r"Expected to have finished reduction in the prior iteration before starting a new one",
        cause=say("DDP waits for gradients of parameters that the loss does not depend on"),
        remedy=say("use their output in the loss, set requires_grad_(False) on them, or find_unused_parameters=True"),
    ),
    known(
        "ready_twice",
        r"Expected to mark a variable ready only once",
        cause=say("a parameter got its gradient twice in one backward pass, which DDP cannot reduce"),
        remedy=say("gradient checkpointing with use_reentrant=False; call the wrapped model once per backward"),
    ),
    known(
        "models_differ",
        r"DDP expects same model across all ranks",
        r"appears not to match (?:sizes|strides) of the same param in process 0",
        cause=say("the ranks built different models"),
        remedy=say("build the model from the configuration and one seed alone, never from a rank's own data"),
    ),
    known(
        "collective_mismatch",
        r"Detected mismatch between collectives on ranks",
        r"Mismatch between collective operation types",
        r"op\.preamble\.length <= op\.nbytes",
        cause=say("the ranks called different collectives, or one collective with different shapes"),
        remedy=say(
            "look for a branch by rank around a collective (save, gather, log); "
            "TORCH_DISTRIBUTED_DEBUG=DETAIL trainwiz launch names both"
        ),
    ),
    known(
        "collective_timeout",
        r"Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=\d+, OpType=(?P<operation>\w+)",
        r"Timed out waiting \d+ms for (?P<operation>\w+) operation to complete",
        r"Application timeout caused pair closure(?P<operation>)",
        r"due to ProcessGroupNCCL watchdog hang(?P<operation>)",
        cause=say(
            "a rank waited in vain for the others in a collective {operation}: one of them was slow, stuck or gone"
        ),
        remedy=say(
            "compare the ranks' last lines for the one that is elsewhere (evaluation, saving, an uneven loader); "
            "TORCH_NCCL_TRACE_BUFFER_SIZE=2000 trainwiz launch records who was where"
        ),
        transient=None,
    ),
    known(
        "nccl_system",
        r"(?:unhandled (?:system|cuda) error|nccl(?:System|UnhandledCuda)Error|"
        r"ncclInternalError(?![^\n]*\nLast error:\n[^\n]*(?:[Ss]ocket|NET/)))[^\n]*"
        r"(?:(?:\n(?!Last error)[^\n]+)?\nLast error:\n(?P<problem>[^\n]+))?",
        cause=say("NCCL failed in what it stands on: the network, memory, or a driver: {problem}"),
        remedy=say(
            "NCCL_DEBUG=INFO trainwiz launch shows which; then NCCL_SOCKET_IFNAME for the right network, "
            "NCCL_IB_DISABLE=1 or NCCL_P2P_DISABLE=1 as a test"
        ),
        transient=None,
    ),
    known(
        "port_in_use",
        r"EADDRINUSE",
        r"[Aa]ddress already in use",
        cause=say("the port of the rendezvous is taken by another program"),
        remedy=say("set machine.main_process_port 0 on one machine; `ss -ltnp` shows who listens"),
        transient=True,
        plan_change="any_port",
    ),
    known(
        "address_unknown",
        r"The IPv[46] network addresses of \((?P<address>[^,)]+), \d+\) cannot be retrieved",
        r"gai error: -\d+(?P<address>)",
        r"socket\.gaierror: \[Errno -\d+\](?P<address>)",
        cause=say("the name of machine 0 leads to no address {address}"),
        remedy=say("set machine.main_process_ip to an address: `hostname -I` on machine 0 shows its own"),
    ),
    known(
        "rendezvous_timeout",
        r"Timed out after \d+ seconds waiting for clients\. (?P<present>\d+)/(?P<expected>\d+) clients joined",
        r"store based barrier on rank.*world_size=(?P<expected>\d+), worker_count=(?P<present>\d+)",
        cause=say("only {present} of {expected} ranks came to the rendezvous"),
        remedy=say("start all machines with the same plan; look at the logs of those that did not come"),
        transient=None,
    ),
    known(
        "address_unreachable",
        r"The client socket has (?:timed out after \d+ms|failed to connect).*\((?P<address>[^,)]+), (?P<port>\d+)\)",
        r"No route to host(?P<address>)(?P<port>)|Network is unreachable",
        cause=say("machine 0 cannot be reached at {address} {port}"),
        remedy=say(
            "check machine.main_process_ip, the port and the firewall: `nc -vz ADDRESS PORT` from the other machine"
        ),
        transient=None,
    ),
    known(
        "rendezvous_lost",
        r"Rendezvous(?:Closed|Connection|Timeout)Error",
        cause=say("torchrun's meeting of the machines was closed, or cannot be reached"),
        remedy=say("see why another machine ended; then start all of them anew, at about the same time"),
        transient=None,
        secondary=True,
    ),
    known(
        "connection_lost",
        r"(?<!\[Errno 104\] )Connection (?:closed|reset) by (?:remote )?peer",
        r"ncclRemoteError|ncclInternalError",
        r"DistNetworkError|DistStoreError",
        r"(?<!\[Errno 111\] )Connection refused",
        cause=say("a rank lost the connection to another one that had ended, or never found it"),
        remedy=say("read the other ranks' logs: one of them failed before; across machines, see the network"),
        transient=None,
        secondary=True,
    ),
    known(
        "no_answer",
        r"ConnectionRefusedError: \[Errno 111\]",
        r"(?:BrokenPipeError|ConnectionResetError|ConnectionAbortedError): \[Errno \d+\]",
        cause=say(
            "what the script was connected to is not there, or has ended: a server, a program that reads its output, "
            "another process of the training"
        ),
        remedy=say("the traceback shows what it was; see other ranks' logs for one that failed before"),
        transient=None,
        secondary=True,
    ),
)
