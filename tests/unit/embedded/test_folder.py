"""The folder of an embedded server: its lock outlives its owner only with the server, its socket place is private."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from planq.deploy.local.folder import (
    LONGEST_SOCKET_PATH,
    FolderLock,
    last_lines,
    make_private,
    size_of,
    socket_folder,
)
from planq.shared.platform.data_folder import kept_text, lacks_space, make_own, require_own, serves, usable
from planq.shared.platform.errors import Misconfigured


def test_a_lock_is_taken_once_and_can_be_taken_again_after_release(tmp_path: Path) -> None:
    first, second = FolderLock(tmp_path, "a server"), FolderLock(tmp_path, "a server")
    first.acquire(patience=0)

    with pytest.raises(Misconfigured, match=f"a server in {tmp_path} is already in use by process {os.getpid()}"):
        second.acquire(patience=30)  # its owner lives, so nothing is waited for

    first.release()
    second.acquire(patience=0)
    second.release()


def test_a_lock_waits_for_the_server_of_a_released_owner(tmp_path: Path) -> None:
    owner = FolderLock(tmp_path, "a server")
    owner.acquire(patience=0)
    server = subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=[owner.fileno()], text=True
    )
    owner.release()
    with pytest.raises(Misconfigured, match="process unknown"):
        FolderLock(tmp_path, "a server").acquire(patience=0.1)

    threading.Timer(0.2, server.communicate, ["\n"]).start()
    successor = FolderLock(tmp_path, "a server").acquire(patience=20)

    assert server.wait(60) == 0
    successor.release()


def test_a_short_path_keeps_its_sockets_inside(tmp_path: Path) -> None:
    make_private(tmp_path / "x")

    place = socket_folder(tmp_path / "x", "s")

    assert place == tmp_path / "x" / "run"
    assert stat.S_IMODE(place.stat().st_mode) == 0o700


def test_a_remembered_socket_folder_that_others_could_enter_is_not_used_again(tmp_path: Path) -> None:
    home = tmp_path / ("d" * LONGEST_SOCKET_PATH)
    make_private(home)
    first = socket_folder(home, "s")
    assert socket_folder(home, "s") == first
    first.chmod(0o755)

    second = socket_folder(home, "s")

    assert second != first
    assert len(os.fsencode(second / "s")) <= LONGEST_SOCKET_PATH
    first.rmdir()
    second.rmdir()


def test_a_remembered_socket_folder_that_became_a_link_is_not_followed(tmp_path: Path) -> None:
    home = tmp_path / ("d" * LONGEST_SOCKET_PATH)
    make_private(home)
    first = socket_folder(home, "s")
    first.rmdir()
    make_private(tmp_path / "elsewhere")
    first.symlink_to(tmp_path / "elsewhere")

    second = socket_folder(home, "s")

    assert second != first
    first.unlink()
    second.rmdir()


def test_the_end_of_a_log_is_shown_whatever_it_holds(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert last_lines(log) == "(its log is empty)"

    log.write_bytes(b"x" * 50_000 + b"\nlast but one\n\xff last\n")

    assert last_lines(log, 2) == "last but one\n\ufffd last"


def test_only_what_was_written_since_is_shown(tmp_path: Path) -> None:
    log = tmp_path / "part.log"
    log.write_text("of an earlier start\n")
    begins = size_of(log)

    assert last_lines(log, since=begins) == "(its log is empty)"
    with log.open("a") as opened:
        opened.write("of this start\n")
    assert last_lines(log, since=begins) == "of this start"
    assert size_of(tmp_path / "absent") == 0


def test_a_data_folder_that_is_a_file_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(Misconfigured, match=f"{tmp_path}/file is a file.*PLANQ_DATA"), usable(folder):
            folder.mkdir()


def test_a_disk_that_is_full_is_said_and_what_lies_elsewhere_is_left_alone(tmp_path: Path) -> None:
    def fill() -> None:
        with usable(tmp_path), open("/dev/full", "w") as full:  # the kernel's disk without space
            full.write("x")

    with pytest.raises(Misconfigured, match=rf"^no space left in {tmp_path}: \d+ KiB are free"):
        fill()
    for error in (OSError(errno.EIO, "broken"), FileNotFoundError(errno.ENOENT, "absent", "/elsewhere/x")):
        with pytest.raises(type(error)), usable(tmp_path):
            raise error


def test_the_room_that_is_left_is_compared_with_what_is_needed(tmp_path: Path) -> None:
    assert lacks_space(tmp_path, 1) is None
    assert lacks_space(tmp_path / "absent", 2**62) is None
    told = lacks_space(tmp_path, 2**62)
    assert told is not None
    assert told.startswith(f"no space left in {tmp_path}: ")


def test_a_server_is_known_by_its_socket(tmp_path: Path) -> None:
    inside = f"postgresql://planq@/planq?host={str(tmp_path).replace('/', '%2F')}%2Fpostgres%2Frun&port=5432"

    assert serves(tmp_path, inside, "redis://elsewhere")
    assert serves(tmp_path, "postgresql://elsewhere/x", f"redis+socket://{tmp_path}/valkey/run/valkey.sock")
    assert not serves(tmp_path, "postgresql://elsewhere/x", "redis://elsewhere")
    (tmp_path / "valkey").mkdir()
    (tmp_path / "valkey" / "run.path").write_text("/tmp/planq-short")
    assert serves(tmp_path, "redis+socket:///tmp/planq-short/valkey.sock")


def test_what_is_kept_is_refused_once_others_may_read_it(tmp_path: Path) -> None:
    assert kept_text(tmp_path, "flower-password", lambda: "secret") == "secret"
    kept = tmp_path / "flower-password"
    for mode, rights in ((0o640, "read"), (0o604, "read"), (0o620, "write"), (0o666, "read and write")):
        kept.chmod(mode)
        with pytest.raises(Misconfigured, match=f"mode 0{mode:o}, by which others may {rights} it: run `chmod 600"):
            kept_text(tmp_path, "flower-password", lambda: "secret")
    kept.chmod(0o600)
    assert kept_text(tmp_path, "flower-password", lambda: "other") == "secret"


def test_a_secret_behind_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "planted").write_text("known to its author")
    (tmp_path / "secret-keys").symlink_to(tmp_path / "planted")
    with pytest.raises(Misconfigured, match="is a link"):
        kept_text(tmp_path, "secret-keys", lambda: "secret")


@pytest.mark.parametrize(("mode", "is_good"), [(0o700, True), (0o755, True), (0o775, False), (0o777, False)])
def test_a_data_folder_in_which_others_may_write_is_refused(tmp_path: Path, mode: int, is_good: bool) -> None:
    data = tmp_path / "data"
    data.mkdir()
    data.chmod(mode)
    if is_good:
        make_own(data)
        return
    with pytest.raises(Misconfigured, match="others may write it: run `chmod 755"):
        make_own(data)


def test_a_data_folder_is_made_so_that_it_is_not_refused_later(tmp_path: Path) -> None:
    before = os.umask(0o002)
    try:
        make_own(tmp_path / "data")
        make_own(tmp_path / "data")
    finally:
        os.umask(before)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_foreign_owner_is_refused(tmp_path: Path) -> None:
    os.chown(tmp_path, 65_534, 65_534)
    with pytest.raises(Misconfigured, match="belongs to the user 65534, and this is the user 0"):
        require_own(tmp_path)
