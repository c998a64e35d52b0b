import os, sys, json, datetime as dt, warnings, traceback, copy
import torch, torch.distributed as dist
from torch import nn

sys.path.insert(0, os.path.dirname(__file__))
import recording_group as rg

rank, world, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
torch.set_num_threads(1)
warnings.simplefilter("ignore")
dist.Backend.register_backend("recording", rg.create, extended_api=True, devices=["cpu"])
dist.init_process_group(
    "recording",
    init_method=f"file://{folder}/store",
    rank=rank,
    world_size=world,
    timeout=dt.timedelta(seconds=40),
)


class Block(nn.Module):
    def __init__(s, w):
        super().__init__()
        s.norm = nn.LayerNorm(w)
        s.up = nn.Linear(w, 3 * w)
        s.down = nn.Linear(3 * w, w)

    def forward(s, x):
        return x + s.down(torch.relu(s.up(s.norm(x))))


class Net(nn.Module):
    def __init__(s, w=17, n=3):
        super().__init__()
        s.embed = nn.Linear(5, w)
        s.blocks = nn.ModuleList(Block(w) for _ in range(n))
        s.head = nn.Linear(w, 7, bias=False)

    def forward(s, x):
        x = s.embed(x)
        for b in s.blocks:
            x = b(x)
        return s.head(x)


def train(model, opt, steps=2, ctx=None):
    for i in range(steps):
        rg.PHASE[0] = f"step {i} forward"
        y = model(torch.ones(2, 5)).sum()
        rg.PHASE[0] = f"step {i} backward"
        y.backward()
        rg.PHASE[0] = f"step {i} optimizer"
        opt.step()
        opt.zero_grad()


report = {}


def case(name):
    def deco(f):
        try:
            rg.take_calls()
            rg.PHASE[0] = "setup"
            torch.manual_seed(0)
            f()
            report[name] = rg.take_calls()
        except Exception as e:
            report[name] = {"error": f"{type(e).__name__}: {str(e)[:300]}"}
            rg.take_calls()
            if rank == 0:
                traceback.print_exc()

    return deco


from torch.distributed.fsdp import (
    FullyShardedDataParallel as FSDP,
    ShardingStrategy,
    BackwardPrefetch,
    MixedPrecision,
    fully_shard,
    MixedPrecisionPolicy,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.device_mesh import init_device_mesh

for strat in ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"):

    @case(f"fsdp1 {strat}")
    def _():
        m = FSDP(
            Net(),
            sharding_strategy=ShardingStrategy[strat],
            auto_wrap_policy=ModuleWrapPolicy({Block}),
            device_id=torch.device("cpu"),
        )
        train(m, torch.optim.SGD(m.parameters(), 0.1))


@case("fsdp1 HYBRID")
def _():
    mesh = (
        init_device_mesh("cpu", (world // 2, 2)) if world > 2 else init_device_mesh("cpu", (1, 2))
    )
    m = FSDP(
        Net(),
        sharding_strategy=ShardingStrategy.HYBRID_SHARD,
        device_mesh=mesh,
        auto_wrap_policy=ModuleWrapPolicy({Block}),
        device_id=torch.device("cpu"),
    )
    train(m, torch.optim.SGD(m.parameters(), 0.1))


def f2(name, **kw):
    @case(name)
    def _():
        m = Net()
        mesh = kw.pop("mesh", None) or init_device_mesh("cpu", (world,))
        for b in m.blocks:
            fully_shard(b, mesh=mesh, **kw)
        fully_shard(m, mesh=mesh, **kw)
        train(m, torch.optim.SGD(m.parameters(), 0.1))


f2("fsdp2")
f2("fsdp2 no reshard", reshard_after_forward=False)
f2(
    "fsdp2 bf16",
    mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
)
if world > 2:
    f2("hsdp2", mesh=init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("r", "s")))
    f2("fsdp2 reshard 2", reshard_after_forward=2)


@case("zero redundancy")
def _():
    from torch.distributed.optim import ZeroRedundancyOptimizer

    m = nn.parallel.DistributedDataParallel(Net())
    train(m, ZeroRedundancyOptimizer(m.parameters(), torch.optim.Adam, lr=0.1), 3)


@case("powersgd")
def _():
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as h

    m = nn.parallel.DistributedDataParallel(Net())
    m.register_comm_hook(
        h.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2), h.powerSGD_hook
    )
    train(m, torch.optim.SGD(m.parameters(), 0.1), 5)


@case("post local sgd")
def _():
    from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook as h
    from torch.distributed.optim import PostLocalSGDOptimizer
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

    m = nn.parallel.DistributedDataParallel(Net())
    sub, _ = dist.new_subgroups(2) if world >= 2 else (None, None)
    m.register_comm_hook(
        h.PostLocalSGDState(None, sub, start_localSGD_iter=2), h.post_localSGD_hook
    )
    train(
        m,
        PostLocalSGDOptimizer(
            torch.optim.SGD(m.parameters(), 0.1), PeriodicModelAverager(period=2, warmup_steps=2)
        ),
        6,
    )


@case("join")
def _():
    from torch.distributed.algorithms.join import Join

    m = nn.parallel.DistributedDataParallel(Net())
    o = torch.optim.SGD(m.parameters(), 0.1)
    with Join([m]):
        for i in range(2 if rank == 0 else 3):
            rg.PHASE[0] = f"step {i}"
            m(torch.ones(2, 5)).sum().backward()
            o.step()
            o.zero_grad()
        rg.PHASE[0] = "joined"


f = open(f"{folder}/r{rank}.json", "w")
json.dump(report, f, indent=0)
f.close()
os._exit(0)
