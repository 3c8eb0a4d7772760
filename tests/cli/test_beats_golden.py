"""Directories that Beats' own disk queue wrote: `penstock tasks` prints exactly the events that wait."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.beats_golden import CASES, parsed, shown, unpacked
from support.command import penstock
from support.node_process import NodeProcess


@pytest.mark.parametrize("name", CASES)
def test_every_event_of_a_real_directory_is_listed_exactly(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = unpacked(name, tmp_path)
    if case.key is not None:
        monkeypatch.setenv("PENSTOCK_SPOOL_KEY", case.key.hex())
    outcome = penstock("tasks", case.queue)
    rows = [parsed(line) for line in outcome.out.split("\n") if line]
    assert [shown(row["event"]) for row in rows] == case.truth
    assert outcome.code == case.facts.get("exit", 0)


def test_there_are_34_cases() -> None:
    assert len(CASES) == 34


# --- torn in the first frame of the newest segment -----------------------------------------------


@pytest.mark.parametrize("name", ["v2-kill-aes-first", "v2-kill-aes-lz4"])
def test_a_spool_torn_in_its_first_frame_is_not_refused_by_any_command(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, node: NodeProcess, queue: str
) -> None:
    case, out = unpacked(name, tmp_path), tmp_path / "out"
    assert case.key is not None
    monkeypatch.setenv("PENSTOCK_SPOOL_KEY", case.key.hex())
    count = len(case.truth)
    before = contents(case.queue)
    assert penstock("inspect", case.queue).rows[0]["waiting"] == count
    assert (penstock("verify", case.queue).code, penstock("spool", "stat", case.queue).code) == (
        0,
        0,
    )
    outcome = penstock("convert", case.queue, "--to", "taskflux-3", "--out", out)
    assert (outcome.code, outcome.rows[0]["tasks"]) == (0, count)
    outcome = penstock("repair", case.queue, "--out", tmp_path / "repaired")
    assert (outcome.code, outcome.out) == (0, "")
    assert len(penstock("tasks", tmp_path / "repaired").rows) == count
    outcome = penstock("enqueue", "--from", case.queue, "--queue", queue)
    assert (outcome.code, outcome.rows[0]["count"]) == (0, count)
    assert contents(case.queue) == before
    drain = ("spool", "drain", case.queue, "--to", node.address, "--queue", queue)
    outcome = penstock(*drain)
    assert (outcome.code, outcome.rows[0]["sent"]) == (0, count)
    # Nothing was cut: the torn segment lies aside.
    newest = max(before)
    assert (case.queue / f"{newest}.damaged").read_bytes() == before[newest]
    assert penstock(*drain).rows[0]["sent"] == 0


@pytest.mark.parametrize("name", ["v2-kill-aes-first", "v2-kill-aes-lz4"])
def test_a_torn_segment_alone_is_reported_as_torn_or_of_another_key_and_kept(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = unpacked(name, tmp_path)
    assert case.key is not None
    *others, newest = sorted(case.queue.glob("*.seg"))
    for other in others:
        other.unlink()
    before = contents(case.queue)
    monkeypatch.setenv("PENSTOCK_SPOOL_KEY", case.key.hex())
    commands: list[tuple[str | Path, ...]] = [
        ("tasks", case.queue),
        ("spool", "stat", case.queue),
        ("spool", "tail", case.queue),
        ("spool", "drain", case.queue, "--to", "127.0.0.1:1", "--queue", "q"),
        ("convert", case.queue, "--to", "taskflux-3", "--out", tmp_path / "out"),
        ("enqueue", "--from", case.queue, "--node", "127.0.0.1:1"),
    ]
    for command in commands:
        outcome = penstock(*command)
        assert (outcome.code, "torn, or another key" in outcome.err) == (1, True), command
        assert newest.name in outcome.err
    verified = penstock("verify", case.queue)
    assert (verified.code, [row["status"] for row in verified.rows]) == (1, ["wrong-key"])
    assert contents(case.queue) == before


@pytest.mark.parametrize("name", ["v2-kill-aes-first", "v2-kill-aes-lz4", "v2-aes", "v2-aes-lz4"])
def test_a_wrong_key_is_refused_and_changes_nothing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = unpacked(name, tmp_path)
    before = contents(case.queue)
    monkeypatch.setenv("PENSTOCK_SPOOL_KEY", bytes(16).hex())
    for command in ("tasks", "verify"):
        assert penstock(command, case.queue).code == 1
    for words in (("stat",), ("drain", "--to", "127.0.0.1:1", "--queue", "q")):
        assert penstock("spool", words[0], case.queue, *words[1:]).code == 1
    assert contents(case.queue) == before


def contents(place: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in place.glob("*.seg")}


# --- written again with every option -------------------------------------------------------------

FORMS = [
    [*serialization, *compress, *encrypt]
    for serialization in (["--serialization", "cbor"], ["--serialization", "protobuf"])
    for compress in ([], ["--compress"])
    for encrypt in ([], ["--encrypt"])
]


@pytest.mark.parametrize(
    ("name", "flags"),
    [(name, FORMS[number % len(FORMS)]) for number, name in enumerate(CASES)]
    + [("v2-plain", flags) for flags in FORMS],
    ids=lambda each: each if isinstance(each, str) else " ".join(each),
)
def test_every_case_converted_with_options_of_version_2_gives_its_truth(
    name: str, flags: list[str], tmp_path: Path
) -> None:
    case, out = unpacked(name, tmp_path), tmp_path / "out"
    (tmp_path / "key").write_bytes(case.key or bytes(16))
    key: list[str | Path] = []
    if case.key is not None or "--encrypt" in flags:
        key = ["--key-file", tmp_path / "key"]
    outcome = penstock("convert", case.queue, "--to", "beats-2", "--out", out, *flags, *key)
    row = outcome.rows[0]
    assert (outcome.code, row["left_unencodable"]) == (0, 0)
    expected = {"--encrypt": "encrypted", "--compress": "compressed", "protobuf": "protobuf"}
    options = [words for flag, words in expected.items() if flag in flags]
    inspected = penstock("inspect", out, *key).rows[0]
    assert (row["options"], inspected["damage"]) == (options, [])
    assert not inspected["segments"] or inspected["options"] == sorted(options)
    assert inspected["version"] in ([], [2])
    listed = penstock("tasks", out, *key)
    rows = [parsed(line)["event"] for line in listed.out.split("\n") if line]
    truth = case.truth
    if "protobuf" in flags:  # which has no flags
        truth = [re.sub(r'"flags": [0-9]+', '"flags": 0', event) for event in truth]
    assert [shown(event) for event in rows] == truth


def test_a_key_named_for_a_spool_without_encryption_encrypts_what_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = unpacked("v2-two-runs", tmp_path)
    (tmp_path / "key").write_bytes(bytes(16))
    key = ["--key-file", str(tmp_path / "key")]
    outcome = penstock("convert", case.queue, "--to", "beats-2", "--out", tmp_path / "1", *key)
    assert outcome.rows[0]["options"] == ["encrypted"]
    # A key that opens the source does not: without --encrypt a spool is decrypted.
    outcome = penstock("convert", tmp_path / "1", "--to", "beats-2", "--out", tmp_path / "2", *key)
    assert outcome.rows[0]["options"] == []
    # Nor does one that is only in the environment.
    monkeypatch.setenv("PENSTOCK_SPOOL_KEY", bytes(16).hex())
    outcome = penstock("convert", case.queue, "--to", "beats-2", "--out", tmp_path / "3")
    assert outcome.rows[0]["options"] == []


@pytest.mark.parametrize(
    "flags",
    [
        ["--to", "beats-2", "--encrypt"],
        ["--to", "beats-2", "--serialization", "json"],
        ["--to", "beats-1", "--compress"],
        ["--to", "taskflux-3", "--serialization", "cbor"],
    ],
    ids=" ".join,
)
def test_options_that_mean_nothing_are_refused(flags: list[str], tmp_path: Path) -> None:
    case = unpacked("v2-two-runs", tmp_path)
    outcome = penstock("convert", case.queue, "--out", tmp_path / "out", *flags)
    assert outcome.code == 2
    assert not (tmp_path / "out").exists()
