"""What the manual of the rules on scripts says, tried on two gloo ranks. Rank 0 prints one JSON object."""

import contextlib
import datetime
import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

warnings.simplefilter("ignore")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from accelerate import Accelerator  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

CLAIMS: dict[str, Callable[[], Any]] = {}
SHORT = datetime.timedelta(seconds=2)


def claim(function: Callable[[], Any]) -> Callable[[], Any]:
    CLAIMS[function.__name__] = function
    return function


def accelerator(steps: int = 1) -> Accelerator:
    made = Accelerator(cpu=True, gradient_accumulation_steps=steps)
    made.step = 0
    made.gradient_state.plugin_kwargs["num_steps"] = steps  # one process keeps one state
    return made


def one_weight(value: float = 0.0) -> nn.Linear:
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, value)
    return model


def loss_of(model: nn.Module, slope: float) -> torch.Tensor:
    return model(torch.tensor([[slope]])).sum()


@claim
def tw702_other_ranks_states_are_missing() -> Any:
    engine, folder = accelerator(), Path(sys.argv[1]) / "state"
    found = []
    for ranks in ((0,), (0, 1)):
        if engine.process_index in ranks:
            engine.save_state(str(folder))
        dist.barrier()
        found.append(sorted(p.name for p in folder.glob("random_states_*")))
        dist.barrier()  # the other rank saves next
    return found


@claim
def tw705_a_prepared_loader_gives_a_share() -> Any:
    return [sum(len(b) for b in accelerator().prepare(DataLoader(list(range(8)), batch_size=2)))]


@claim
def tw706_gather_keeps_what_fills_up_the_last_batch() -> Any:
    engine = accelerator()
    loader = engine.prepare(DataLoader(list(range(6)), batch_size=2))
    gathered = sum(len(engine.gather(batch)) for batch in loader)
    return [gathered, sum(len(engine.gather_for_metrics(batch)) for batch in loader)]


@claim
def tw710_723_724_only_the_accelerator_divides() -> Any:
    gradients = []
    for steps, divisor, plain in ((1, 1, False), (4, 1, False), (4, 4, False), (4, 1, True)):
        engine, model = accelerator(steps), one_weight()
        prepared = engine.prepare(model)
        for _ in range(4):
            with engine.no_sync(prepared):
                loss = loss_of(prepared, 1.0) / divisor
                loss.backward() if plain else engine.backward(loss)
        gradients.append(model.weight.grad.item())
    return gradients


@claim
def tw712_scaled_gradients_are_clipped_to_nothing() -> Any:
    moved = []
    for unscale in (False, True):
        model, scaler = one_weight(), torch.amp.GradScaler("cpu")
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        scaler.scale(loss_of(model, 1.0)).backward()
        if unscale:
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        moved.append(round(-model.weight.item() * 65536, 1))
    return moved


@claim
def tw713_clipping_each_time_is_another_gradient() -> Any:
    norms = []
    for each in (True, False):
        engine, model = accelerator(2), one_weight()
        prepared, optimizer = engine.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))
        for slope in (20.0, -1.0):
            with engine.accumulate(prepared):
                engine.backward(loss_of(prepared, slope))
                if each or engine.sync_gradients:
                    engine.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
        norms.append(round(-model.weight.item(), 2))
    return norms


@claim
def tw714_a_step_without_gradients() -> Any:
    model = one_weight()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    loss_of(model, 1.0).backward()
    optimizer.zero_grad()
    optimizer.step()
    return model.weight.item()


@claim
def tw715_gradients_add_up() -> Any:
    weights = []
    for clears in (False, True):
        model = one_weight()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        for _ in range(3):
            loss_of(model, 1.0).backward()
            optimizer.step()
            if clears:
                optimizer.zero_grad()
        weights.append(model.weight.item())
    return weights


@claim
def tw716_a_second_step_is_refused() -> Any:
    model, scaler = one_weight(), torch.amp.GradScaler("cpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    answers = []
    for _ in range(2):
        scaler.scale(loss_of(model, 1.0)).backward()
        answers.append(failure(lambda: scaler.step(optimizer)))
    return answers


@claim
def tw771_the_optimizers_own_step_takes_scaled_gradients() -> Any:
    moved = []
    for by_scaler in (False, True):
        model, scaler = one_weight(), torch.amp.GradScaler("cpu")
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        scaler.scale(loss_of(model, 1.0)).backward()
        if by_scaler:
            scaler.step(optimizer)
        else:
            optimizer.step()
        moved.append(-model.weight.item())
    return moved


@claim
def tw718_the_bare_model_learns_on_each_rank_alone() -> Any:
    gradients = []
    for bare in (True, False):
        model = nn.parallel.DistributedDataParallel(one_weight())
        loss_of(model.module if bare else model, float(dist.get_rank())).backward()
        found = [torch.zeros(1, 1) for _ in range(2)]
        dist.all_gather(found, model.module.weight.grad)
        gradients.append([gradient.item() for gradient in found])
    return gradients


@claim
def tw719_739_what_the_trainer_says() -> Any:
    import transformers

    class Trainer(transformers.Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, **items):  # noqa: ARG002
            loss = loss_of(model, 1.0)
            loss.backward()
            return loss

    class Older(transformers.Trainer):
        def compute_loss(self, model, inputs, return_outputs=False):  # noqa: ARG002
            return loss_of(model, 1.0)

    arguments = transformers.TrainingArguments(
        sys.argv[1], use_cpu=True, max_steps=1, report_to=[], save_strategy="no", remove_unused_columns=False
    )
    data = [{"labels": torch.zeros(1)}] * 32
    made = [kind(model=one_weight(), args=arguments, train_dataset=data) for kind in (Trainer, Older)]
    return [failure(trainer.train).rpartition("<locals>.")[2][:55] for trainer in made]


@claim
def tw725_each_micro_batch_is_an_update() -> Any:
    weights: list[list[float]] = []
    for told in (False, True):
        engine, model = accelerator(4), one_weight()
        prepared, optimizer = engine.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))
        engine.gradient_state._set_sync_gradients(True)  # what a fresh process begins with
        weights.append([])
        for _ in range(4):
            with engine.accumulate(prepared) if told else contextlib.nullcontext():
                engine.backward(loss_of(prepared, 1.0))
                optimizer.step()
                optimizer.zero_grad()
            weights[-1].append(model.weight.item())
    return weights


@claim
def tw737_an_optimizer_from_before_moves_nothing() -> Any:
    from torch.distributed.fsdp import fully_shard

    moved = []
    mesh = torch.distributed.init_device_mesh("cpu", (2,))
    for early in (True, False):
        model = nn.Linear(2, 2, bias=False)
        nn.init.ones_(model.weight)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        fully_shard(model, mesh=mesh)
        if not early:
            optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        moved.append(model.weight.full_tensor().sum().item())
    return moved


@claim
def tw738_an_unprepared_loader_gives_everything() -> Any:
    loader = DataLoader(list(range(8)), batch_size=2)
    return [sum(len(b) for b in each) for each in (loader, accelerator().prepare(loader))]


@claim
def tw784_samples_that_are_split_twice_are_not_seen() -> Any:
    data = list(range(16))
    seen = []
    for sampler in (torch.utils.data.DistributedSampler(data, shuffle=False), None):
        loader = accelerator().prepare(DataLoader(data, batch_size=2, sampler=sampler))
        own = [int(x) for batch in loader for x in batch]
        both: list[Any] = [None, None]
        dist.all_gather_object(both, own)
        seen.append(len({x for each in both for x in each}))
    return seen


@claim
def tw745_a_sampler_and_shuffle_exclude_each_other() -> Any:
    data = list(range(8))
    sampler = torch.utils.data.DistributedSampler(data)
    return failure(lambda: DataLoader(data, sampler=sampler, shuffle=True))


@claim
def tw720_721_722_what_each_update_sees() -> Any:
    return [windows(lambda i: i % 4 == 0), windows(lambda i: i % (4 - 1) == 0), windows(lambda i: (i + 1) % 4 == 0)]


def windows(is_due: Callable[[int], bool]) -> list[float]:
    """The gradients of two epochs of 13 micro-batches with gradient 1 each, n = 4."""
    model, seen = one_weight(), []
    for _ in range(2):
        for i in range(13):
            loss_of(model, 1.0).backward()
            if is_due(i):
                seen.append(model.weight.grad.item())
                model.zero_grad()
    return seen


@claim
def tw726_727_schedules_run_ahead() -> Any:
    rates = []
    for prepare in (True, False):
        engine, model = accelerator(2), one_weight()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / 10)
        model, optimizer = engine.prepare(model, optimizer)
        scheduler = engine.prepare(scheduler) if prepare else scheduler
        for _ in range(12):
            with engine.accumulate(model):
                engine.backward(loss_of(model, 1.0))
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
        rates.append(round(optimizer.param_groups[0]["lr"], 2))
    return rates


@claim
def tw728_ranks_drift_apart() -> Any:
    weights = []
    for synchronize in (False, True):
        engine, model = accelerator(), one_weight()
        prepared = engine.prepare(model)
        with contextlib.nullcontext() if synchronize else engine.no_sync(prepared):
            engine.backward(loss_of(prepared, float(engine.process_index)))
        weights.append(engine.gather(model.weight.grad.reshape(1)).tolist())
    return weights


@claim
def tw730_two_passes_count_as_one() -> Any:
    gradients = []
    for passes in (2, 1):
        engine, model = accelerator(2), one_weight()
        prepared = engine.prepare(model)
        for _ in range(2):
            with engine.accumulate(prepared):
                for _ in range(passes):
                    engine.backward(loss_of(prepared, 1.0))
        gradients.append(model.weight.grad.item())
    return gradients


@claim
def tw701_a_collective_of_one_rank_ends_in_a_timeout() -> Any:
    group = dist.new_group(timeout=SHORT)
    return failure(lambda: dist.all_reduce(torch.zeros(1), group=group)) if dist.get_rank() == 0 else ""


@claim
def tw703_a_backward_pass_of_one_rank_ends_in_a_timeout() -> Any:
    group = dist.new_group(timeout=SHORT)
    model = nn.parallel.DistributedDataParallel(one_weight(), process_group=group)
    return failure(lambda: loss_of(model, 1.0).backward()) if dist.get_rank() == 0 else ""


@claim
def tw704_buffers_of_one_rank_end_in_a_timeout() -> Any:
    """Without buffers the forward pass of one rank goes through."""
    answers = []
    for net in (one_weight(), nn.BatchNorm1d(1)):
        group = dist.new_group(timeout=SHORT)
        model = nn.parallel.DistributedDataParallel(net, process_group=group).eval()
        with torch.no_grad():
            # One that is broadcast from rank 0 is only sent, so the other rank is the one that waits.
            answers.append(failure(lambda: model(torch.ones(2, 1))) if dist.get_rank() == 1 else "")  # noqa: B023
    return ["" if not a else "waited" for a in answers]


def failure(do: Callable[[], Any]) -> str:
    try:
        do()
    except (RuntimeError, TypeError, ValueError) as error:
        return "timeout" if "imed out" in str(error) else str(error)
    return ""


def main() -> None:
    torch.set_num_threads(1)
    accelerator()
    rank, answers = dist.get_rank(), {}
    for name, do in CLAIMS.items():
        both: list[Any] = [None, None]
        dist.all_gather_object(both, do())
        answers[name] = both
    if rank == 0:
        print(json.dumps(answers))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
