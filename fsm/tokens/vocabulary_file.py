"""`read`, `write`: a cache on disk of the tries of vocabularies, as plain arrays with a SHA-256 checksum, bounded in size by LRU eviction.
A file is named after the hash of the tokens (`fingerprint`) and replaced atomically. One that is damaged or of another version is ignored
with a warning, and built anew; so is one that cannot be read or written. Nothing that is read is executed. The checksum finds damage; it
does not protect against a writer of the folder, who can make masks wrong.

Layout: a line with the format's version; 32 bytes, the SHA-256 of all that follows; 8 bytes, the length of a JSON header (little endian);
the header (`fingerprint`, and name, type and length of each array); the arrays, one after the other.
"""

from __future__ import annotations

import json
import os
import tempfile
import warnings
from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fsm.caller import stacklevel_of_user

Arrays = dict[str, NDArray[Any]]

FORMAT = b"fsm vocabulary 2\n"
"""Changes whenever other bytes would be written for the same tokens; a test remembers them."""
SUFFIX = ".fsm-vocabulary"
_TYPES = ("<u1", "<u2", "<u4", "<i2", "<i4")
_START = len(FORMAT) + 32


def fingerprint(texts: Iterable[bytes], lengths: NDArray[np.int32], eos_token_ids: Iterable[int]) -> str:
    """A name for these tokens: the SHA-256 of all that a vocabulary is made from and of the format. Cost: 10 ms per MB."""
    digest = sha256(FORMAT)
    digest.update(json.dumps(sorted(eos_token_ids)).encode())
    digest.update(_narrowed(lengths).tobytes())
    digest.update(b"".join(texts))
    return digest.hexdigest()


def read(folder: Path, name: str, restore: Callable[[Arrays], None]) -> bool:
    """Call `restore` with the arrays that were written as `name`; False where there is no file, and, with a warning, where it is not valid.

    The file counts as used now. Cost: 5 to 8 ms per MB, nearly all of it for the checksum.
    """
    path = folder / (name + SUFFIX)
    try:
        data = path.read_bytes()
        os.utime(path)
    except FileNotFoundError:
        return False
    except OSError as error:
        _warn(f"could not read {str(path)!r} ({error})")
        return False
    try:
        restore(_parse(memoryview(data), name))
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        _warn(f"{str(path)!r} is damaged or no file of this version ({type(error).__name__}: {error})")
        return False
    return True


def _parse(data: memoryview, name: str) -> Arrays:
    if data[: len(FORMAT)] != FORMAT:
        raise ValueError("it begins with something else")
    body = data[_START:]
    if sha256(body).digest() != data[len(FORMAT) : _START]:
        raise ValueError("its checksum is another one")
    begin = 8 + int.from_bytes(body[:8], "little")
    header = json.loads(bytes(body[8:begin]))
    if header["fingerprint"] != name:
        raise ValueError("it was made from other tokens")
    arrays = {}
    for label, kind, length in header["arrays"]:
        if kind not in _TYPES or not isinstance(length, int) or length < 0:
            raise ValueError(f"array {label!r} has an unknown type")
        arrays[label] = np.frombuffer(body, kind, length, begin) if length else np.zeros(0, kind)
        begin += arrays[label].nbytes
    return arrays


def write(folder: Path, name: str, arrays: Mapping[str, NDArray[Any]], max_bytes: int) -> None:
    """Write a file atomically, then remove the least recently used ones until the folder fits `max_bytes`.

    Where the file cannot be written, there is a warning and no error, as it is only a cache.
    """
    narrow = {label: _narrowed(array) for label, array in arrays.items()}
    kinds = [[label, array.dtype.str.replace("|", "<"), len(array)] for label, array in narrow.items()]
    header = json.dumps({"fingerprint": name, "arrays": kinds}).encode()
    body = b"".join([len(header).to_bytes(8, "little"), header, *(array.tobytes() for array in narrow.values())])
    if len(body) + _START > max_bytes:
        _warn(f"the vocabulary takes {len(body) + _START:,} bytes, and `max_disk_bytes` is {max_bytes:,}")
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _replace(folder / (name + SUFFIX), (FORMAT, sha256(body).digest(), body))
        _shrink(folder, max_bytes)
    except OSError as error:
        _warn(f"could not write to {str(folder)!r} ({error})")


def _replace(path: Path, parts: Iterable[bytes]) -> None:
    handle, unfinished = tempfile.mkstemp(SUFFIX, ".unfinished-", path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.writelines(parts)
        os.replace(unfinished, path)
    except BaseException:
        os.unlink(unfinished)
        raise


def _shrink(folder: Path, max_bytes: int) -> None:
    found = []
    for path in folder.glob("*" + SUFFIX):
        try:
            status = path.stat()
        except FileNotFoundError:  # another process removed it
            continue
        found.append((status.st_mtime_ns, status.st_size, path))
    total = sum(size for _, size, _ in found)
    for _, size, path in sorted(found)[:-1]:  # the newest is the one that was just written
        if total <= max_bytes:
            return
        path.unlink(missing_ok=True)
        total -= size


def _narrowed(array: NDArray[Any]) -> NDArray[Any]:
    """The same numbers in the smallest type of a file that holds them."""
    low, high = int(array.min(initial=0)), int(array.max(initial=0))
    kind = next(k for k in _TYPES if np.iinfo(k).min <= low and high <= np.iinfo(k).max)
    return array.astype(kind)


def _warn(what: str) -> None:
    warnings.warn(
        f"vocabulary cache: {what}. The vocabulary is made anew.", RuntimeWarning, stacklevel=stacklevel_of_user()
    )
