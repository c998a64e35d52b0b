"""The listing says where things are: small folders, one meaning a name, no scraps of modules."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path

import perfmodel

ROOT = Path(perfmodel.__file__).parent

MOST_ENTRIES = 9

LARGE_FOLDERS = {
    ".": "one folder per layer, and the modules below all of them",
    "cli": "one file per command",
    "scenario/sections": "one file per section",
    "report": "one folder per product, over common/",
    "scenario/sections/strategies": "one file per strategy",
    "workload": "one folder per way to state a model, and what is worked out of it",
    "workload/zoo": "one module or folder per family of models",
    "training": "one folder per family of strategies, and the table of all",
    "collectives/algorithms": "one file per family of algorithms",
}
"""Folders with more entries, and why."""

ROLES = "the role of a module, the same in each package"
LAYERS = "one thing in several layers: as asked, as resolved, as reported"

REPEATED_STEMS = {
    "model": ROLES + ": its data",
    "run": ROLES + ": its one public function",
    "export": ROLES + ": JSON and CSV",
    "text": ROLES + ": sentences",
    "page": ROLES + ": the HTML page of a product",
    "figures": ROLES + ": plotly figures",
    "tables": ROLES + ": tables of a page",
    "assumptions": ROLES + ": what an answer rests on",
    "spec": ROLES + ": contract of a file",
    "load": ROLES + ": from a name or file to an object",
    "read": ROLES + ": from text to data",
    "detect": ROLES + ": which kind a file is",
    "worker": ROLES + ": what a started process does",
    "network": "the network at each level of detail, and what they share",
    "machine": LAYERS,
    "memory": ROLES + ": bytes per GPU of a strategy",
    "events": LAYERS,
    "what_if": LAYERS,
    "strategy": LAYERS + "; a row of the table",
    "options": ROLES + ": what a strategy or the CLI is called with",
    "data_parallel": LAYERS,
    "parameter_server": LAYERS + "; and the collective of the same name",
    "horovod": LAYERS,
    "priority": LAYERS,
    "settings": "what a library, or a strategy, is set to; and its tables",
    "step_plan": "the type, and the function of each strategy that makes one",
    "nvls": "the algorithm, and how NCCL lays it on links",
    "collnet": "the algorithm, and how NCCL lays it on links",
    "fit": "of link costs, and of transferable factors",
    "forward_model": "of link costs, and of transferable factors",
}
"""File names that stand in several folders, and why the same word is right in each."""

ROW = "one row of a table of alike modules"

SMALL_MODULES = {
    "api/verification": "a word of the API that a reader looks for by name",
    "__main__": "what Python runs of a package",
    "traces/rebuild/executed_units": "which unit an operator runs in, apart from layers",
    "torch_modules/given/user_function": "imports of a user's code, apart from ours",
    "workload/readers/layer_shapes": "layers of a file, apart from its parameters",
    "torch_modules/model_document": "the text of a model file, apart from what it says",
    "workload/zoo/diffusion/dit": ROW,
    "workload/configs/families/image_text_configs": ROW + ": families of configurations",
    "workload/configs/extra_fields": "fields that no contract has, apart from those that act",
    "report/scaling/mixture_search": "how a mixture was found, which a result alone has",
    "studies/advise/narrow_gains": "why several changes gain more surely, apart from the advice",
    "studies/choose/step_causes": "why a step takes as long, apart from the search",
    "report/topology/page": "the page of a machine, apart from its picture",
    "simulate/engine/collective_meetings": "who has reached a collective, apart from streams",
    "simulate/uncontended/before_corrections": "what machines share, apart from their own times",
    "simulate/uncontended/changed_machine": "routes after an event, apart from times at the start",
    "compiled_loops/cycle_times": ROW + ": loops that are compiled",
    "compiled_loops/fair_shares": ROW + ": loops that are compiled",
    "compiled_loops/heaviest_paths": ROW + ": loops that are compiled",
    "collectives/algorithms/hierarchical": ROW,
    "collectives/algorithms/in_network": ROW,
    "collectives/algorithms/linear": ROW,
    "collectives/algorithms/parameter_server": ROW,
    "collectives/algorithms/pat": ROW,
    "workload/kernels/attention": ROW + ": kinds of kernels",
    "workload/kernels/convolutions": ROW + ": kinds of kernels",
    "workload/kernels/float8/float8_calls": "which calls send fp8, by the recipes beside it",
    "workload/kernels/grouped_products": ROW + ": kinds of kernels",
    "workload/zoo/decoders/experts/latent_attention": ROW + ": parts of a block",
    "workload/zoo/decoders/experts/second_token": "what stands around a further block of a model",
    "workload/configs/section_model": "the door from a scenario's section, apart from readers",
    "workload/shards/attention_calls": "calls of the context group, apart from the tensor group's",
    "workload/zoo/images/vgg": ROW,
    "workload/zoo/images/vit": ROW,
    "report/common/terminal": ROW + ": renderers",
    "topology/composed/host_line": "a host as one text, apart from its fields",
    "topology/composed/node_yaml": "from a node to text, apart from how nodes are made",
    "topology/importers/nccl_xml/graph_dump": ROW + ": one file format",
    "files/write": "used by all packages through files/__init__",
    "scenario/rules/broken_rules": "the table of rules, and what all of them look at",
    "scenario/rules/plan_rules": ROW + ": families of rules",
    "scenario/rules/precision_rules": ROW + ": families of rules",
    "studies/advise/quick_scan": "a search among settings, apart from what is simulated in full",
    "traces/rebuild/recorded_machine": "a fit of its own, apart from the files that hold it",
    "traces/chakra/simulate_trace": "what is simulated, apart from how it is read",
    "studies/tune/settings/grid_search": "the search, apart from what is searched",
    "studies/tune/horovod": "one question, which a reader looks for by name",
    "studies/run/steps/bottlenecks/hot_spot": "one question, which a reader looks for by name",
    "validate/predict/baselines": "the rivals' formulas, apart from our own",
    "validate/trainings/rows/errata": "one question, which a reader looks for by name",
    "validate/trainings/rows/software": "one question, which a reader looks for by name",
}
"""Modules under 110 lines with fewer than two importers, and why they stand alone."""

FOLDERS_OF_ROWS = ("training/", "scenario/sections/strategies/")
"""One module, or one of each role, for every row of a table."""

SMALL = 110

PARTICIPLES = {
    "cabling": "noun: cables of a fabric",
    "edge_routing": "noun",
    "imported": "of ImportedTopology, what a reader returns",
    "link_sharing": "noun",
    "lowered": "of LoweredCollective, as compilers say",
    "packing": "noun of combinatorics",
    "prepared": "of PreparedSize",
    "published": "trainings that others published",
    "recursive_doubling": "name of the algorithm",
    "rerouting": "noun",
    "ring": "noun",
    "sampling": "noun of statistics",
    "testbed": "noun",
    "tie_breaking": "noun",
    "training": "a section of the YAML",
    "unrolled": "of UnrolledPhases",
}
"""Modules that end in -ed or -ing, and why that is the right word."""

VAGUE = frozenset({
    "one", "found", "said", "known", "here", "there", "wanted", "told", "asked", "beside",
    "alike", "seen", "left", "taken", "made", "kept", "shown", "tried", "gone", "what", "which",
    "whose", "way", "ways", "words", "given",
})  # fmt: skip
"""Names that could stand in any function and tell nothing of what they hold."""


FIELDS = {
    "found": "of a Fault: what was found, beside what is allowed",
    "what": "a field of JSON documents and of measurement files",
    "kept": "a field of profile files",
    "told": "a field of profile files",
    "left": "a field of profile files and of priors.yaml",
    "alike": "a field of priors.yaml",
    "seen": "a field of spread.yaml",
}
"""Words that stand as fields in file formats and contracts, and may name a field or parameter."""


SCENARIO_FAULTS = ("scenario/model", "scenario/source_map")
"""Modules that make a Fault from a path, what was found and what is allowed."""


def files() -> list[Path]:
    return sorted(path for path in ROOT.rglob("*.py") if "_data" not in path.parts)


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).with_suffix("").as_posix()


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def entries(folder: Path) -> list[str]:
    """Modules and folders of a folder; data files stand beside the module that reads them."""
    return sorted(
        path.name
        for path in folder.iterdir()
        if (path.suffix == ".py" and path.name != "__init__.py") or (path / "__init__.py").exists()
    )


def importers() -> dict[str, set[str]]:
    """Which modules import each module, by path; words of the API count as importers, too."""
    known = {name_of(path) for path in files()}
    found: dict[str, set[str]] = defaultdict(set)
    for path in files():
        for node in ast.walk(tree(path)):
            targets: list[str] = []
            if isinstance(node, ast.ImportFrom) and node.module:
                module = node.module.replace(".", "/").removeprefix("perfmodel/")
                targets = [f"{module}/{alias.name}" for alias in node.names] + [module]
            elif isinstance(node, ast.Constant) and str(node.value).startswith("perfmodel."):
                dotted = str(node.value).partition(":")[0]
                targets = [dotted.replace(".", "/").removeprefix("perfmodel/")]
            for target in targets:
                if target in known:
                    found[target].add(name_of(path))
    return found


def test_a_folder_has_few_entries() -> None:
    folders = {path.parent for path in files()}
    counts = {f.relative_to(ROOT).as_posix(): len(entries(f)) for f in folders}
    large = {folder: count for folder, count in counts.items() if count > MOST_ENTRIES}
    assert set(large) == set(LARGE_FOLDERS), large


def test_a_file_name_means_one_thing() -> None:
    stems = Counter(path.stem for path in files() if path.name != "__init__.py")
    commands = {path.stem for path in (ROOT / "cli").glob("*.py")}
    repeated = {stem for stem, count in stems.items() if count > 1 + (stem in commands)}
    assert repeated == set(REPEATED_STEMS)


def test_modules_are_nouns() -> None:
    stems = {path.stem for path in files()}
    assert {stem for stem in stems if stem.endswith(("ed", "ing"))} == set(PARTICIPLES)


def test_small_modules_have_several_importers() -> None:
    by_module = importers()
    small = {
        name_of(path)
        for path in files()
        if path.name != "__init__.py"
        and path.read_text(encoding="utf-8").count("\n") < SMALL
        and len(by_module[name_of(path)]) < 2
        and path.parent.name != "cli"
        and not name_of(path).startswith(FOLDERS_OF_ROWS)
    }
    assert small == set(SMALL_MODULES)


def test_names_say_what_they_hold() -> None:
    fields = {
        (name_of(path), node.target.id)
        for path in files()
        for top in ast.walk(tree(path))
        if isinstance(top, ast.ClassDef)
        for node in top.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
        and node.target.id in FIELDS
    }  # fmt: skip
    fields |= {(path, "found") for path in ("errors", "files/csv_rows", *SCENARIO_FAULTS)}
    vague = [
        f"{name_of(path)}:{node.lineno} {name}"
        for path in files()
        for node in ast.walk(tree(path))
        for name in (
            [node.id] if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
            else [node.arg] if isinstance(node, ast.arg)
            else []
        )
        if name in VAGUE and (name_of(path), name) not in fields
    ]  # fmt: skip
    assert not vague


def test_these_tests_can_fail() -> None:
    assert entries(ROOT / "cli")
    assert importers()["units"]
    assert "one" in VAGUE
