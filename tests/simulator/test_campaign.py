"""The commands around the simulator."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from simulation import campaign
from simulation.shrinking import reduce_list, shrink
from simulation.swarm import SHORT
from simulation.world import World


def test_a_campaign_ends_with_a_line_for_the_ledger(capsys: pytest.CaptureFixture[str]) -> None:
    code = campaign.main(["--seeds", "2", "--jobs", "1", "--scale", "short", "--first", "3"])
    ledger = json.loads(capsys.readouterr().out)
    assert (code, ledger["violations"], ledger["seeds"], ledger["first"]) == (0, 0, 2, 3)
    assert ledger["events"] > 0
    assert ledger["simulated_hours"] > 0


def test_a_seed_that_fails_is_kept_and_said_with_its_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(World, "_what_is_missing", lambda _self: "something is missing")
    arguments = ["--seeds", "1", "--jobs", "1", "--scale", "short", "--out", str(tmp_path)]
    assert campaign.main(arguments) == 1
    told = capsys.readouterr()
    assert json.loads(told.out)["failed"] == [0]
    assert "--seed 0 --scale short --trace" in told.err.replace("\n", " ")
    assert "something is missing" in (tmp_path / "seed-0.trace").read_text(encoding="utf-8")
    assert (tmp_path / "seed-0.history.jsonl").read_text(encoding="ascii").startswith("{")


@pytest.mark.parametrize(
    "arguments",
    [["--seeds", "0"], ["--seeds", "many"], ["--first", "-1"], ["--jobs", "9" * 30]],
)
def test_bad_arguments_are_refused_in_one_sentence(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        campaign.main(arguments)
    assert ended.value.code == 2
    assert "error: argument" in capsys.readouterr().err


def test_one_seed_is_told_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert campaign.main(["--seed", "3", "--faults", "kill", "--skip", "1,2"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["seed"], found["violation"], found["faults"]) == (3, None, ["kill"])
    with pytest.raises(SystemExit):
        campaign.main(["--seed=3", "--faults", "bad luck"])
    assert "choose from" in capsys.readouterr().err


def test_the_script_of_the_repository_runs_a_seed_from_any_directory(tmp_path: Path) -> None:
    script = Path(campaign.__file__).parent.parent / campaign.COMMAND
    words = [str(script), "--seed", "3", "--faults", "kill"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["seed"] == 3


def test_a_list_is_reduced_to_what_fails() -> None:
    tries = list[list[int]]()

    def fails(items: list[int]) -> bool:
        tries.append(items)
        return 3 in items and 17 in items

    assert reduce_list(list(range(30)), fails, 1000) == [3, 17]
    assert len(tries) < 100
    assert set(reduce_list(list(range(30)), fails, 3)) > {3, 17}  # it ran out of tries
    assert reduce_list([], fails, 10) == []


def test_only_a_seed_that_fails_is_shrunk() -> None:
    with pytest.raises(ValueError, match="does not fail"):
        shrink(3, SHORT)
