"""Power cuts at every operation of a spool, on a disk that keeps what it likes; and a disk that fails once.

Whatever ``publish`` returned for is there, in order and once; nothing acknowledged comes back but what the window allows;
and the spool says what it cut and works on.
"""

from __future__ import annotations

import pytest

from penstock.formats.beats.segment import Options
from penstock.testing.disk import MemoryFiles, crash_states, crash_states_now
from support.report import report
from support.spool_lives import AES, LZ4, PLAIN, Life, check_image, draining, random_life, scripted

WAYS = pytest.mark.parametrize(
    "options", [PLAIN, LZ4, AES, AES | LZ4], ids=["plain", "lz4", "aes", "aes and lz4"]
)

CHECK_FURTHER = 7
"""Of so many states one is also written to: that takes longer than to look at it."""


def check_everywhere(life: Life, *, seed: int, random_states: int) -> int:
    count = 0
    for crash in crash_states(life.files, seed=seed, random_states=random_states):
        try:
            check_image(
                life,
                MemoryFiles(crash.image),
                crash.operations,
                goes_on=count % CHECK_FURTHER == 0,
            )
        except Exception as error:
            error.add_note(f"after {crash.operations} operations, {crash.survived}, seed {seed}")
            raise
        count += 1
    assert count > len(life.files.operations)
    return count


@WAYS
def test_what_was_published_is_there_and_what_was_sent_is_not_wherever_the_power_is_cut(
    options: Options,
) -> None:
    count = check_everywhere(scripted(options), seed=1, random_states=2)
    count += check_everywhere(draining(options), seed=1, random_states=1)
    report(f"spool, scripted, options {int(options)}: {count} crash states recovered")


@pytest.mark.parametrize(("options", "seed"), [(PLAIN, 0), (LZ4, 1), (AES, 1)])
def test_random_lives_survive_every_cut(options: Options, seed: int) -> None:
    count = check_everywhere(random_life(seed, options), seed=seed, random_states=1)
    report(f"spool, seed {seed}, options {int(options)}: {count} crash states recovered")


@pytest.mark.heavy
@WAYS
@pytest.mark.parametrize("seed", range(2, 32))
def test_many_random_lives_survive_every_cut(seed: int, options: Options) -> None:
    life = random_life(seed, options, length=80)
    count = check_everywhere(life, seed=seed, random_states=6)
    report(f"spool, seed {seed}, options {int(options)}: {count} crash states recovered")


@WAYS
def test_a_second_power_cut_during_recovery_loses_nothing_either(options: Options) -> None:
    life = scripted(options)
    count = 0
    for number, crash in enumerate(crash_states(life.files, seed=2, random_states=2)):
        if number % 9:
            continue
        files = MemoryFiles(crash.image)
        check_image(life, files, crash.operations, goes_on=False)
        for second in crash_states(files, seed=number, random_states=1):
            check_image(life, MemoryFiles(second.image), crash.operations, goes_on=False)
            count += 1
    report(f"spool, options {int(options)}: {count} crash states of recovery recovered")
    assert count > 0


def check_kills(life: Life) -> int:
    """Kill the process everywhere; what the next one finds must last."""
    count = 0
    for operations in range(len(life.files.operations) + 1):
        files = life.files.after(operations)
        found = check_image(life, files, operations, goes_on=False)
        for crash in crash_states_now(files, seed=operations, random_states=1):
            again = check_image(life, MemoryFiles(crash.image), operations, goes_on=False)
            assert again == found, "what a start found was lost by the next power cut"
            count += 1
    return count


@WAYS
def test_what_a_start_found_after_a_kill_survives_a_power_cut(options: Options) -> None:
    count = check_kills(scripted(options))
    report(f"spool, options {int(options)}: {count} states after a kill and a power cut recovered")
    assert count > 0
