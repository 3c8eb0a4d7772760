"""What a spool is, before any of its frames is read."""

from __future__ import annotations

from penstock.families.beats.damage import BAD_END, BAD_EVENT
from penstock.families.beats.family import NAME as FAMILY
from penstock.families.beats.location import Location
from penstock.families.beats.tasks import refuse_state
from penstock.families.sources import Source, file_at
from penstock.families.tables import OK


def describe(name: str, location: Location) -> Source:
    """Return what a pipeline needs to know of a spool. Raises ``PathRefused``.

    Frames have an order, but what was acknowledged only ``state.dat`` tells, as of now: a spool has no log.
    """
    refuse_state(location)
    paths = [segment.path for segment in location.segments]
    if location.state_path is not None:
        paths.append(location.state_path)
    return Source(
        name=name,
        family=FAMILY,
        words=f"Beats' disk queue, {location.kind}",
        files=tuple(file_at(name, path) for path in paths),
        has_log=False,
        queues=None,
        removes_by_position=True,
        whole_statuses=(OK, BAD_END, BAD_EVENT),
        migration_refusal=f"{name}: tasks of a spool are brought to a node by 'penstock spool drain', or by 'penstock"
        " enqueue --from', which keep their delays; a pipeline reads them",
    )
