"""The rigs that pause nodes, take their files, and send them frames of strangers, once each."""

from __future__ import annotations

from rigs.cluster import pause, strangers, wipe
from rigs.cluster.stage import stage

FAST = ("--heartbeat", 50, "--election-timeout", 500)


def test_a_leader_and_a_follower_that_stand_still_lose_nothing() -> None:
    with stage("pause", 1, is_short=True) as made:
        pause.run(made, 2, *FAST, seconds=(1.5,), election_seconds=1.0)
        assert made.problems == []
        assert made.figures["lost"] == made.figures["unexpected"] == 0
        assert made.figures["pauses_that_changed_the_leader"] == 1


def test_a_node_that_lost_its_files_catches_up_by_a_snapshot_and_votes_again() -> None:
    with stage("wipe", 1, is_short=True) as made:
        wipe.run(made, 1, *FAST)
        assert made.problems == []
        assert made.figures["lost"] == made.figures["unexpected"] == 0
        assert made.figures["caught_up_by_snapshot"] == 1


def test_mutated_frames_of_a_stranger_stop_no_node_and_change_neither_term_nor_leader() -> None:
    with stage("strangers", 1, is_short=True) as made:
        strangers.run(made, 1, "--election-timeout", 2000, frames=3000)
        assert made.problems == []
        assert made.figures["lost"] == made.figures["unexpected"] == 0
        assert made.figures["mutated_frames"] >= 3000
