"""Keys come from files and the environment, in every way that people write them down, and are never shown."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path

import pytest

from penstock.errors import InvalidValue, PathMissing
from penstock.storage.spool_keys import KEY_VARIABLE, read_key
from support.beats_spools import KEY

TEXTS = [KEY.hex(), KEY.hex().upper(), b64encode(KEY).decode()]


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
@pytest.mark.parametrize("text", TEXTS)
def test_a_key_is_read_from_a_file_or_the_environment(tmp_path: Path, text: str, end: str) -> None:
    (tmp_path / "key").write_text(text + end)
    assert read_key(tmp_path / "key", None, {}) == KEY
    assert read_key(None, None, {KEY_VARIABLE: text + end}) == KEY


def test_16_bytes_of_a_file_are_the_key_as_they_are(tmp_path: Path) -> None:
    for key in (KEY, b"0123456789abcdef", b"\n" * 16):
        (tmp_path / "key").write_bytes(key)
        assert read_key(tmp_path / "key", None, {}) == key


def test_a_file_goes_before_the_environment(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(KEY)
    assert read_key(tmp_path / "key", None, {KEY_VARIABLE: "no key"}) == KEY
    assert read_key(None, None, {}) is None


def test_a_password_gives_the_key_that_the_shipper_derives(tmp_path: Path) -> None:
    for text in ("secret", "secret\n", "secret\r\n"):
        (tmp_path / "password").write_text(text)
        key = read_key(None, tmp_path / "password", {})
        assert key == bytes.fromhex("edaf02af5f91ce7400d744b88c84d52e")


@pytest.mark.parametrize(
    "text", ["", "\n", "secret", KEY.hex()[:-1], KEY.hex() + "0", "z" * 32, "AAAA", "\udcff" * 9]
)
def test_what_is_no_key_is_refused_and_not_shown(tmp_path: Path, text: str) -> None:
    (tmp_path / "key").write_bytes(text.encode("utf-8", "surrogateescape"))
    for path, environment in ((tmp_path / "key", {}), (None, {KEY_VARIABLE: text})):
        with pytest.raises(InvalidValue, match="holds no key") as caught:
            read_key(path, None, environment)
        assert not text.strip() or text.strip() not in str(caught.value)


def test_files_that_hold_nothing_like_a_secret_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"\n")
    (tmp_path / "large").write_bytes(bytes(10_000))
    with pytest.raises(InvalidValue, match="no password"):
        read_key(None, tmp_path / "empty", {})
    with pytest.raises(InvalidValue, match="too large"):
        read_key(tmp_path / "large", None, {})
    with pytest.raises(PathMissing):
        read_key(tmp_path / "missing", None, {})
    with pytest.raises(InvalidValue, match="one of them"):
        read_key(tmp_path / "empty", tmp_path / "large", {})
