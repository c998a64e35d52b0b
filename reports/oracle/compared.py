"""One line of the comparison with SimGrid, made when it is recorded and again when it is tested."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

from oracle.peers_tables import AT_MESSAGE, FEASIBLE, Cell
from oracle.scenes import Scene, missing, play
from oracle.shared_links import Case

WITHIN = 1e-3


@dataclass(frozen=True, slots=True)
class Row:
    """How long one flow or collective takes, as SimGrid and as we say.

    Parameters
    ----------
    family, scene : str
    launch : int
        Number of the flow or collective in its scene.
    digest : str
        Of the scene; another one means that SimGrid has to be asked again.
    source : str
        "SimGrid" and its version, or "closed form".
    wanted_s : float
    closed_form_s, message_s, flow_s : float or None
        None where there is no such number.
    explained : str
        Why a difference beyond the limit is right.
    message_explained : bool
        Whether that is said of fidelity "message" too.
    """

    family: str
    scene: str
    launch: int
    digest: str
    source: str
    wanted_s: float
    closed_form_s: float | None
    message_s: float | None
    flow_s: float | None
    explained: str = ""
    message_explained: bool = False

    def _difference(self, found_s: float | None) -> float | None:
        return None if found_s is None else found_s / self.wanted_s - 1

    @property
    def message_difference(self) -> float | None:
        """Of fidelity "message"."""
        return self._difference(self.message_s)

    @property
    def flow_difference(self) -> float | None:
        """Of fidelity "flow"."""
        return self._difference(self.flow_s)

    @property
    def unexplained(self) -> bool:
        """Whether any of ours is off without a reason."""
        flow_off = abs(self.flow_difference or 0.0) > WITHIN and not self.explained
        off = abs(self.message_difference or 0.0) > WITHIN
        off_closed = abs(self._difference(self.closed_form_s) or 0.0) > WITHIN
        return flow_off or off_closed or (off and not self.message_explained)

    def cells(self) -> list[str]:
        """As a line of the recorded table."""
        values = [getattr(self, field.name) for field in fields(self)]
        return [
            f"{v:.12g}" if isinstance(v, float) else "" if v is None else str(v) for v in values
        ]


def _text(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.12g}" if isinstance(value, float) else str(value)


COLUMNS = tuple(field.name for field in fields(Row))


def of_scene(
    scene: Scene, case: Case, told: str, wanted_s: Sequence[float], source: str
) -> Iterator[Row]:
    """Lines of one scene, given its digest, how long each launch takes, and who says so."""
    ours = {name: _took(name, scene) for name in ("message", "flow")}
    for number, wanted in enumerate(wanted_s):
        yield Row(
            family=scene.family,
            scene=scene.name,
            launch=number,
            digest=told,
            source=source,
            wanted_s=wanted,
            closed_form_s=None,
            message_s=ours["message"][number],
            flow_s=ours["flow"][number],
            explained=case.flow_differs or case.message_differs,
            message_explained=bool(case.message_differs),
        )


def of_cell(cell: Cell, scene: Scene, told: str, wanted_s: float, source: str) -> Row:
    """Line of one cell of a table."""
    return Row(
        family=f"{cell.table}, {'up to' if cell.ranks <= FEASIBLE else 'above'} {FEASIBLE} ranks",
        scene=scene.name,
        launch=0,
        digest=told,
        source=source,
        wanted_s=wanted_s,
        closed_form_s=cell.closed_form_s,
        message_s=_took("message", scene)[0] if cell.ranks <= AT_MESSAGE else None,
        flow_s=_took("flow", scene)[0],
    )


def _took(fidelity: str, scene: Scene) -> list[float | None]:
    """How long each launch takes; None where the network cannot play the scene (yet)."""
    if missing(fidelity, scene):
        return [None] * len(scene.launches)
    ends = play(fidelity, scene)
    return [end - launch.at_s for end, launch in zip(ends, scene.launches, strict=True)]
