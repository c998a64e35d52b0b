"""The command tree; errors in the input become messages and exit codes, never a traceback."""

from __future__ import annotations

import gc
import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from perfmodel.errors import Fault, PerfmodelError, nearest
from perfmodel.escape import PLAIN_ERRORS, printable
from perfmodel.version import __version__

_CHOICE = re.compile(r"'(?P<found>[^']*)' is not one of (?P<names>'.*')\.")
"""How click refuses what is none of a flag's values."""

SIGPIPE_EXIT = 141
"""128 + SIGPIPE: what a shell reports for a program whose output is no longer read."""


@contextmanager
def _plain_messages() -> Iterator[None]:
    """Escape what messages about flags repeat of them."""
    try:
        yield
    except Exception as error:
        # typer brings its own copy of click, whose classes have no public name
        if isinstance(text := getattr(error, "message", None), str):
            text = text.replace("Value error, ", "", 1)  # pydantic's, which says nothing here
            error.message = printable(_with_nearest(text), lines=True)  # type: ignore[attr-defined]
        raise


class Commands(TyperGroup):
    """The group of all commands; turns expected errors into messages and exit codes."""

    @_plain_messages()
    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        """Read the flags of the root; what a terminal would obey is escaped in messages."""
        return super().make_context(*args, **kwargs)

    @_plain_messages()
    def invoke(self, ctx: Any) -> Any:
        """Run the command; errors of ours become lines on stderr and an exit code."""
        try:
            answer = super().invoke(ctx)
            sys.stdout.flush()
        except PerfmodelError as error:
            typer.echo(printable(str(error), lines=True), err=True)
            raise typer.Exit(error.exit_code) from None
        except BrokenPipeError:
            _discard_stdout()
            raise typer.Exit(SIGPIPE_EXIT) from None
        except OSError as error:  # files are read and written where the errors of each are caught
            _discard_stdout()
            reason = error.strerror or str(error)
            fault = (
                Fault("file", reason, "a file that can be used", error.filename)
                if isinstance(error.filename, str)
                else Fault("stdout", reason, "a place that can be written")
            )
            typer.echo(printable(str(fault)), err=True)
            raise typer.Exit(2) from None
        else:
            return answer


def _with_nearest(text: str) -> str:
    """Add the name that was meant to click's message about a choice."""
    match = _CHOICE.fullmatch(text)
    if match is None:
        return text
    meant = nearest(re.findall(r"'([^']*)'", match["names"]), match["found"])
    return f"{text} Did you mean {meant!r}?" if meant else text


def _discard_stdout() -> None:
    """Later flushes, the interpreter's own too, must not fail."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _version(requested: bool) -> None:
    if requested:
        typer.echo(f"perfmodel {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Predict a training step on hardware that you do not own yet: how long, limited by what.

    Exit codes: 0 done, 1 the answer is a failure, 2 the input is wrong.
    """


COMMANDS = {
    "run": "run",
    "tune": "recommend",
    "compare": "compare",
    "sweep": "compare",
    "plan": "recommend",
    "advise": "recommend",
    "collective": "collective",
    "buckets": "models",
    "trace": "trace",
    "export": "trace",
    "verify": "collective",
    "capture": "models",
    "measure": "measure",
    "calibrate": "calibrate",
    "validate": "calibrate",
    "diagnose": "diagnose",
    "scenarios": "init",
    "models": "models",
    "schema": "init",
    "doctor": "init",
    "init": "init",
    "mcp": "init",
    "topology": "topology",
}
"""Module of each command, in the order of the help."""

TOPOLOGY_COMMANDS = ("list", "show", "import", "check")

EXAMPLES = r"""
perfmodel run resnet50-dgx-a100 -o out
perfmodel run bert-large-v100-25g --set 'strategy.bucket_cap=50 MiB' --json
perfmodel run bert-large-v100-25g -o out --explore --images png
perfmodel tune bucket-size-slow-ethernet
perfmodel tune resnet50-dgx-a100 -o out
perfmodel tune resnet50-dgx-a100 --set strategy.kind=horovod
perfmodel tune bert-large-v100-25g bert-large-v100-100g
perfmodel tune resnet50-dgx-a100 --all-sizes --json
perfmodel compare bert-large-v100-25g bert-large-v100-100g --attribute -o out
perfmodel compare resnet50-dgx-a100 --set what_if.network_bandwidth=4 --set what_if.compute=2
perfmodel compare gpt2-xl-pcie-p2p --with 'strategy.bucket_cap=50 MiB; strategy.hook=fp16'
perfmodel sweep sweep-buckets-and-nodes -o out --store sweep.sqlite
perfmodel sweep my-scenario.yaml --set 'sweep.grid={strategy.bucket_cap: [5 MiB, 25 MiB]}'
perfmodel sweep my-scenario.yaml --backend dask --scheduler tcp://10.0.0.5:8786
perfmodel plan plan-gpt2-xl -o out
perfmodel plan plan-gpt2-xl --set 'plan.deadline=5 d' --json
perfmodel plan my-scenario.yaml --store steps.sqlite
perfmodel advise bucket-size-slow-ethernet
perfmodel advise resnet50-dgx-a100 --set cluster.nodes=4 -o out
perfmodel advise my-scenario.yaml --json
perfmodel collective dgx-a100 -o out
perfmodel collective dgx-a100 --nodes 4 --fabric rail-optimised -b '1 MiB' -e '1 GiB' --json
perfmodel collective dgx-h100 --env NCCL_ALGO=Ring --protocol simple --nccl-version 2.21.5
perfmodel buckets resnet18
perfmodel buckets resnet50 --bucket-cap '50 MiB' --json
perfmodel buckets gpt2 --caps-list '1 MiB,25 MiB,100 MiB'
perfmodel trace rank0.json.gz rank1.json.gz -o out
perfmodel trace traces/ --model resnet50 --batch 64 -o out
perfmodel trace rank0.json.gz --set cluster.node=dgx-h100 --set library.name=nccl
perfmodel trace et0.json kineto0.json
perfmodel trace et0.json --topology dgx-a100 -o out
perfmodel trace et --topology dgx-a100 --nodes 2 --fabric rail-optimised
perfmodel export chakra resnet50-dgx-a100 -o et --set cluster.nodes=1
perfmodel verify ring --ranks 2..17
perfmodel verify tree --ranks 64
perfmodel capture train.py:example -o mymodel.yaml
perfmodel capture mypackage.models:example --measure -o mymodel.yaml
perfmodel capture config.json --tokens 1024 -o mymodel.yaml
perfmodel measure ring --backend gloo --ranks 4 -b '1 KiB' -e '64 MiB' -o gloo.json
perfmodel measure ring --backend device --ranks 4 -b '64 KiB' -e '256 MiB' -o gpu.json
torchrun --nproc-per-node 8 --no-python perfmodel measure ring --backend nccl --ranks 8
perfmodel calibrate m.json --topology cpu-loopback -o mine.yaml
perfmodel calibrate m-1.json m-2.json --topology cpu-loopback -o mine.yaml --plot fit.html
perfmodel calibrate 2n.log 8n.log --topology dgx-h100 --fabric rail-optimised -o mine.yaml
perfmodel diagnose nccl.log --topology dgx-h100 --fabric rail-optimised
perfmodel diagnose nccl.log --topology my-node.yaml --profile mine --json
perfmodel validate
perfmodel validate --data my-sweeps -o my-report
perfmodel validate --data my-sweeps --profile mine --json
perfmodel scenarios
perfmodel scenarios resnet50-dgx-a100 > mine.yaml
perfmodel models
perfmodel models llama3-8b whisper-large-v3
perfmodel schema scenario > scenario.schema.json
perfmodel doctor
perfmodel doctor --json
perfmodel init
perfmodel init --model resnet50 --node dgx-a100 --nodes 4 -o resnet50.yaml
perfmodel init --model bert-large --topo topo-m.txt --gpu A100-SXM4-80GB
perfmodel init --trace rank0.json.gz --trace rank1.json.gz --node dgx-h100
perfmodel mcp
perfmodel mcp --time-limit 60
perfmodel topology list
perfmodel topology show dgx-a100
perfmodel topology show dgx-a100 --nodes 4 --fabric rail-optimised -o cluster.html
perfmodel topology show '2 x rtx-4090, 10 GbE' --yaml
perfmodel topology show dgx-a100 --graph dgx.json
perfmodel topology show mine.graphml -o mine.html
perfmodel topology import nccl-topo.xml -o my-node.yaml
perfmodel topology import topo-m.txt --gpu A100-SXM4-80GB -o my-node.yaml
perfmodel topology import ibnetdiscover.txt -o my-fabric.yaml
perfmodel topology check my-node.yaml
"""
"""Examples of all commands, which the help of each shows."""

FUNCTIONS = {"list": "topologies", "import": "import_"}
"""Functions that cannot bear the name of their command."""


def build_app(commands: Iterable[str] = COMMANDS) -> typer.Typer:
    """Make the tree of some commands; only their modules are imported."""
    root = typer.Typer(
        cls=Commands,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    root.callback()(_root)
    for name in commands:
        if name != "topology":
            _add_command(root, COMMANDS[name], name)
            continue
        hardware = typer.Typer(
            help="List, show, check and import hardware descriptions.",
            no_args_is_help=True,
            rich_markup_mode=None,
        )
        for subcommand in TOPOLOGY_COMMANDS:
            _add_command(hardware, name, subcommand, group_words="topology ")
        root.add_typer(hardware, name="topology")
    return root


def _add_command(group: typer.Typer, module: str, name: str, *, group_words: str = "") -> None:
    """Add a command of a module with its examples."""
    function = getattr(import_module(f"perfmodel.cli.{module}"), FUNCTIONS.get(name, name))
    words = f"perfmodel {group_words}{name} "
    examples = [f"  {line}" for line in EXAMPLES.splitlines() if words in f"{line} "]
    # The first character keeps click from joining lines.
    group.command(name, epilog="\n".join(["\b", "Examples:", *examples]))(function)


if TYPE_CHECKING:
    app: typer.Typer


def __getattr__(name: str) -> Any:
    if name == "app":  # all commands
        return build_app()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def main() -> None:
    """Entry point of the console script."""
    # OpenBLAS starts a thread for each core, which spin while modules load: a tenth of a small run.
    # The matrices here are small, and sums should not depend on the number of cores.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # reads all installed packages
    gc.set_threshold(200_000)  # what start-up makes stays: looking for cycles took a tenth of it
    _prepare_streams()
    first = sys.argv[1] if len(sys.argv) > 1 else ""
    try:
        build_app([first] if first in COMMANDS else COMMANDS)(prog_name="perfmodel")
    finally:
        gc.freeze()  # at exit all would be gone over once more: a twentieth of a large run


def _prepare_streams() -> None:
    """Let any encoding of a terminal do, and streams that were closed before the start."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115, PTH123
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors=PLAIN_ERRORS)
