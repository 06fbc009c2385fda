"""One training at a time in a run. The lock is the system's own (flock) and goes with the process that holds it,
however that ends; the file says which process that is, for people.

A forked child lets go of its copy, so that the lock ends with the process that trains. The file is removed by whoever
holds the lock, and a lock on a file that was removed meanwhile is none: then the one that is there now is tried.
"""

from __future__ import annotations

import os
import socket
import weakref
from contextlib import suppress
from errno import EAGAIN, EINVAL, ENOLCK, ENOSYS, ENOTSUP
from fcntl import LOCK_EX, LOCK_NB, LOCK_SH, flock
from pathlib import Path
from stat import S_ISREG

from tapeless.errors import TapelessError
from tapeless.files.plain import open_plain

FILE = "lock"
UNKNOWN_HERE = (ENOLCK, ENOSYS, ENOTSUP)  # what file systems say that know no locks
MOST_READ = 1000  # bytes of the file

_held: set[int] = set()  # descriptors
os.register_at_fork(after_in_child=lambda: _close_all())


class Lock:
    """Held until it is released or forgotten. `kept` is False where the file system knows no locks."""

    def __init__(self, path: Path, descriptor: int, kept: bool) -> None:
        self.kept = kept
        _held.add(descriptor)
        self.release = weakref.finalize(self, _release, path, descriptor, os.getpid())


def hold(folder: Path) -> Lock:
    """The lock of a run; refused where another training has it."""
    path = folder / FILE
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
        except OSError as error:
            raise TapelessError(f"cannot lock the run with {path}: {error.strerror}.") from None
        try:
            lock = _locked(path, descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        if lock is not None:
            return lock
        os.close(descriptor)


def _locked(path: Path, descriptor: int) -> Lock | None:
    """None where the file was removed before it could be locked."""
    kept = True
    try:
        if not S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(EINVAL, "it is no regular file")
        flock(descriptor, LOCK_EX | LOCK_NB)
        if not _stands(path, descriptor):
            return None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()} {socket.gethostname()}\n".encode(), 0)
    except OSError as error:
        if error.errno == EAGAIN:
            raise _in_use(path.parent, descriptor) from None
        if error.errno not in UNKNOWN_HERE:
            raise TapelessError(f"cannot lock the run with {path}: {error.strerror}.") from None
        kept = False
    return Lock(path, descriptor, kept)


def was_left(folder: Path) -> bool:
    """Whether a training took this folder and did not live to leave it; refused where it still has it."""
    try:
        file = open_plain(folder / FILE)
    except OSError:
        return False
    with file:
        try:
            flock(file, LOCK_SH | LOCK_NB)
        except OSError as error:
            if error.errno == EAGAIN:
                raise _in_use(folder, file.fileno()) from None
    return True


def held(folder: Path) -> bool:
    """Whether a process of this machine says that it trains here. Nothing is tried: a lock that is taken to see would
    be in the way of who comes to train."""
    try:
        with open_plain(folder / FILE) as file:
            words = file.read(MOST_READ).decode("utf-8", "replace").split()
        if len(words) != 2 or words[1] != socket.gethostname() or not (words[0].isascii() and words[0].isdigit()):
            return False
        os.kill(int(words[0]), 0)
    except PermissionError:
        return True  # it is there, and somebody else's
    except (OSError, OverflowError):
        return False
    return True


def _stands(path: Path, descriptor: int) -> bool:
    try:
        there, ours = path.lstat(), os.fstat(descriptor)
    except FileNotFoundError:
        return False
    return (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)


def _in_use(folder: Path, descriptor: int) -> TapelessError:
    words = os.pread(descriptor, MOST_READ, 0).decode("utf-8", "replace").split()
    who = "another process"  # which has not come to say which
    if len(words) == 2 and words[0].isascii() and words[0].isdigit():
        who = f"process {words[0]}" + ("" if words[1] == socket.gethostname() else f" on {words[1]}")
    return TapelessError(f"{folder} is in use: {who} trains it; wait for it, or stop it first.")


def _release(path: Path, descriptor: int, process: int) -> None:
    if os.getpid() != process or descriptor not in _held:  # a forked child has let go already
        return
    with suppress(OSError):
        if _stands(path, descriptor):
            path.unlink()
    _held.discard(descriptor)
    os.close(descriptor)


def _close_all() -> None:
    while _held:
        with suppress(OSError):
            os.close(_held.pop())
