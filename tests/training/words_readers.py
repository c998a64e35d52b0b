"""Read words to paste with the libraries that they are for; prints what these understood as JSON.

``python words_readers.py PROGRAM`` with texts in a list of JSON on the standard input.
"""

import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

WORLD = 16


def pytorch(text: str) -> dict[str, Any]:
    """Run the lines on a model of two layers, of one process or of a cluster that is pretended."""
    import torch
    import torch.distributed as dist
    from torch.distributed import fsdp
    from torch.distributed.algorithms.ddp_comm_hooks import (
        default_hooks,
        powerSGD_hook,
        quantization_hooks,
    )
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import wrap
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.nn.parallel import DistributedDataParallel
    from torch.nn.parallel.distributed import _MixedPrecision
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=WORLD)
    blocks = [torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)]
    names = {name: getattr(fsdp, name) for name in dir(fsdp)} | {
        name: getattr(wrap, name) for name in dir(wrap)
    }
    scope: dict[str, Any] = names | {
        "torch": torch,
        "DistributedDataParallel": DistributedDataParallel,
        "ZeroRedundancyOptimizer": ZeroRedundancyOptimizer,
        "_MixedPrecision": _MixedPrecision,
        "PowerSGDState": powerSGD_hook.PowerSGDState,
        "default_hooks": default_hooks,
        "powerSGD_hook": powerSGD_hook,
        "quantization_hooks": quantization_hooks,
        "init_device_mesh": lambda _, *sizes, **rest: init_device_mesh("cpu", *sizes, **rest),
        "CPUOffloadPolicy": partial(fsdp.CPUOffloadPolicy, pin_memory=False),  # as no GPU is there
        "partial": partial,
        "blocks": blocks,
        "units": blocks,
        "model": torch.nn.Sequential(*blocks),
    }
    if "FullyShardedDataParallel" in text:
        scope["FullyShardedDataParallel"] = partial(
            fsdp.FullyShardedDataParallel, device_id=torch.device("cpu")
        )
    exec(text, scope)
    model = scope["model"]
    found = {"model": type(model).__name__}
    if isinstance(model, DistributedDataParallel):
        hooks = [hook.__name__ for hook, _ in getattr(model, "_comm_hooks", [])]
        found |= {
            "bucket_bytes_cap": model.bucket_bytes_cap,
            "bucket_bytes_cap_list": getattr(model, "bucket_bytes_cap_list", None),
            "static_graph": model.static_graph,
            "find_unused_parameters": model.find_unused_parameters,
            "broadcast_buffers": model.broadcast_buffers,
            "hooks": hooks,
            "mixed_precision": str(model.mixed_precision),
        }
        if "state" in scope:
            found["rank"] = scope["state"].matrix_approximation_rank
        if "optimizer" in scope:
            found["optimizer"] = type(scope["optimizer"]).__name__
    elif isinstance(model, fsdp.FullyShardedDataParallel):
        found |= {
            "sharding": model.sharding_strategy.name,
            "prefetch": str(model.backward_prefetch),
            "units": len(fsdp.FullyShardedDataParallel.fsdp_modules(model)),
            "param_dtype": str(model.mixed_precision.param_dtype),
        }
    else:
        group = blocks[0]._get_fsdp_state()._fsdp_param_group
        found |= {
            "kept": group.post_forward_mesh_info is None,
            "param_dtype": str(group.mp_policy.param_dtype),
            "reduce_dtype": str(group.mp_policy.reduce_dtype),
            "offload": type(group.offload_policy).__name__,
            "mesh": list(group.mesh_info.mesh.shape),
            "ahead": len(blocks[0]._get_fsdp_state()._states_to_forward_prefetch),
            "behind": len(blocks[-1]._get_fsdp_state()._states_to_backward_prefetch),
        }
    dist.destroy_process_group()
    return found


def deepspeed(text: str) -> dict[str, Any]:
    """Read a configuration as ``deepspeed.initialize`` does."""
    from deepspeed.runtime.config import DeepSpeedConfig

    os.environ |= {"RANK": "0", "WORLD_SIZE": "1"}
    config = DeepSpeedConfig(json.loads(text))
    return {
        "stage": int(config.zero_config.stage),
        "bucket": config.zero_config.reduce_bucket_size,
        "offload": str(config.zero_config.offload_optimizer),
        "micro_batch": config.train_micro_batch_size_per_gpu,
        "accumulate": config.gradient_accumulation_steps,
        "bf16": config.bfloat16_config.enabled,
        "autocast": str(config.torch_autocast_dtype) if config.torch_autocast_enabled else None,
        "communicated": str(config.communication_data_type),
        "optimizer": [config.optimizer_name, config.optimizer_params],
    }


def accelerate(text: str) -> dict[str, Any]:
    """Launch with the file as far as its environment, and build what it describes; or run lines."""
    import accelerate as library
    from accelerate import utils
    from accelerate.commands import launch

    if "Accelerator(" in text:
        names = {name: getattr(utils, name) for name in dir(utils)}
        scope: dict[str, Any] = names | {"Accelerator": partial(library.Accelerator, cpu=True)}
        exec(text, scope)
        built = scope["accelerator"]
        return {
            "arguments": built.ddp_handler.to_kwargs(),
            "hook": built.ddp_handler.comm_hook.name,
            "accumulate": built.gradient_accumulation_steps,
            "mixed_precision": built.mixed_precision,
        }
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "config.yaml"
        file.write_text(text)
        parsed = launch.launch_command_parser().parse_args(["--config_file", str(file), "x.py"])
        arguments, _, _ = launch._validate_launch_command(parsed)
    found = {
        "processes": arguments.num_processes,
        "machines": arguments.num_machines,
        "file": arguments.deepspeed_config_file,
    }
    if not arguments.use_fsdp:
        return found
    os.environ |= utils.launch.prepare_multi_gpu_env(arguments)
    plugin = utils.FullyShardedDataParallelPlugin()
    return found | {
        "version": plugin.fsdp_version,
        "reshard": str(plugin.reshard_after_forward),
        "sharding": str(plugin.sharding_strategy),
        "prefetch": str(plugin.backward_prefetch),
        "wrap": str(plugin.auto_wrap_policy),
        "offload": str(plugin.cpu_offload),
        "mixed_precision": arguments.mixed_precision,
    }


def torchtitan(text: str) -> dict[str, Any]:
    """Parse flags as ``torchtitan.train`` does."""
    from torchtitan.config import ConfigManager

    named = ["--module", "llama3", "--config", "llama3_debugmodel"]
    config = ConfigManager().parse_args([*named, *text.split()])
    return {
        "training": vars_of(config.training),
        "parallelism": vars_of(config.parallelism),
        "compile": config.compile.enable,
        "recompute": type(config.activation_checkpoint).__qualname__,
    }


def megatron(text: str) -> dict[str, Any]:
    """Find the fields of Megatron-Core's configurations that flags are named after."""
    from megatron.core.distributed import DistributedDataParallelConfig
    from megatron.core.transformer.transformer_config import TransformerConfig

    known = {*DistributedDataParallelConfig.__dataclass_fields__}
    known |= {*TransformerConfig.__dataclass_fields__}
    flags = [word.removeprefix("--").replace("-", "_") for word in text.split() if word[:2] == "--"]
    return {flag: flag in known for flag in flags}


def launch(text: str) -> dict[str, Any]:
    """Parse a line that launches as its own program does."""
    program, *arguments = text.split()
    if program == "deepspeed":
        from deepspeed.launcher import runner

        found = runner.parse_args(arguments)
        return {"nodes": found.num_nodes, "per_node": found.num_gpus, "script": found.user_script}
    from torch.distributed import run

    found = run.parse_args(arguments)
    return {
        "nodes": found.nnodes,
        "per_node": found.nproc_per_node,
        "script": found.training_script,
        "meets": [found.rdzv_backend, found.rdzv_endpoint],
    }


def vars_of(settings: Any) -> dict[str, Any]:
    """Return the fields of a dataclass with slots."""
    return {name: getattr(settings, name) for name in settings.__dataclass_fields__}


READERS: dict[str, Callable[[str], dict[str, Any]]] = {
    "pytorch": pytorch,
    "deepspeed": deepspeed,
    "accelerate": accelerate,
    "torchtitan": torchtitan,
    "megatron": megatron,
    "launch": launch,
}


def main(arguments: Sequence[str]) -> None:
    """Read each text of the standard input, and write what was understood as the last line."""
    read = READERS[arguments[0]]
    print(f"\n{json.dumps([read(text) for text in json.load(sys.stdin)], default=str)}")


if __name__ == "__main__":
    main(sys.argv[1:])
