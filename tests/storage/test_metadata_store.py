"""Term and vote on the disk: never forgotten, never half-written."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BadData, CannotConvert
from penstock.formats.taskflux.generation import Generation
from penstock.formats.taskflux.metadata import encode_metadata
from penstock.formats.taskflux.variant import WRITTEN
from penstock.model import INT32_MAX, INT64_MAX, HardState, NodeId, Term
from penstock.storage.files import OsFiles
from penstock.storage.metadata import MetadataStore
from penstock.testing.disk import MemoryFiles, crash_states
from support.log_stores import flipped

PATH = Path("/node/metadata")
GENERATIONS = [Generation.TWO, Generation.THREE]


def states(generation: Generation) -> st.SearchStrategy[HardState]:
    is_wide = generation is Generation.THREE
    terms = st.integers(1, INT64_MAX if is_wide else INT32_MAX).map(Term)
    votes = st.none() | st.integers(0 if is_wide else 1, INT32_MAX).map(NodeId)
    return st.builds(HardState, term=terms, vote=votes)


@pytest.mark.parametrize("generation", GENERATIONS)
@given(data=st.data())
def test_the_last_state_is_what_the_next_start_reads(
    generation: Generation, data: st.DataObject
) -> None:
    files = MemoryFiles()
    store = MetadataStore(files, PATH, WRITTEN[generation].metadata)
    for state in data.draw(st.lists(states(generation), min_size=1, max_size=4)):
        store.replace(state)
        assert store.state == state
        assert MetadataStore(files, PATH, WRITTEN[generation].metadata).state == state


@pytest.mark.parametrize("generation", GENERATIONS)
def test_real_files_hold_the_bytes_of_the_format_page(
    tmp_path: Path, generation: Generation
) -> None:
    path = tmp_path / "metadata"
    store = MetadataStore(OsFiles(), path, WRITTEN[generation].metadata)
    store.replace(HardState(term=Term(3), vote=NodeId(2)))
    expected = {
        Generation.TWO: "5A6EA012 00000001 00000003 00000002 29096DBE",
        Generation.THREE: "5A6EA012 00000001 0000000000000003 00000002 6F1CE734",
    }
    assert path.read_bytes() == bytes.fromhex(expected[generation])
    assert [p.name for p in tmp_path.iterdir()] == ["metadata"]


@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_power_cut_leaves_the_old_vote_or_the_new_one(generation: Generation) -> None:
    old = HardState(term=Term(4), vote=NodeId(1))
    new = HardState(term=Term(5), vote=NodeId(2))
    files = MemoryFiles({str(PATH): encode_metadata(old, WRITTEN[generation].metadata)})
    store = MetadataStore(files, PATH, WRITTEN[generation].metadata)
    store.replace(new)
    found = []
    for crash in crash_states(files):
        state = MetadataStore(MemoryFiles(crash.image), PATH, WRITTEN[generation].metadata).state
        assert state == new or (state == old and crash.operations < len(files.operations))
        found.append(state)
    assert {old, new} == set(found)


@pytest.mark.parametrize("generation", GENERATIONS)
def test_every_flipped_bit_stops_the_start(generation: Generation) -> None:
    whole = encode_metadata(HardState(term=Term(4), vote=NodeId(1)), WRITTEN[generation].metadata)
    for bit in range(len(whole) * 8):
        damaged = {str(PATH): flipped(whole, bit)}
        files = MemoryFiles(damaged)
        with pytest.raises(BadData) as caught:
            MetadataStore(files, PATH, WRITTEN[generation].metadata)
        assert caught.value.path == str(PATH)
        assert caught.value.offset is not None
        assert files.image() == damaged


def test_metadata_of_16_bytes_stays_16_bytes() -> None:
    # TaskFlux rewrites the first 16 bytes in place: a checksum behind them would be stale.
    state = HardState(term=Term(3), vote=NodeId(2))
    whole = encode_metadata(state, WRITTEN[Generation.TWO].metadata)
    files = MemoryFiles({str(PATH): whole[:16]})
    store = MetadataStore(files, PATH, WRITTEN[Generation.TWO].metadata)
    assert store.state == state
    store.replace(state)
    assert files.image() == {str(PATH): whole[:16]}


def test_a_vote_for_node_0_is_refused_where_it_would_read_as_none() -> None:
    files = MemoryFiles()
    store = MetadataStore(files, PATH, WRITTEN[Generation.TWO].metadata)
    before = files.image()
    for state in (HardState(term=Term(2), vote=NodeId(0)), HardState(term=Term(INT32_MAX + 1))):
        with pytest.raises(CannotConvert):
            store.replace(state)
    assert store.state == HardState()
    assert files.image() == before
    three = MetadataStore(MemoryFiles(), PATH, WRITTEN[Generation.THREE].metadata)
    three.replace(HardState(term=Term(2), vote=NodeId(0)))
    assert three.state.vote == 0
