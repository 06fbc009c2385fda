"""Event files that TensorBoard opens: numbers as scalars under KIND/NAME, sentences as text."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, Mapping
from io import BytesIO
from numbers import Real
from pathlib import Path
from typing import Any

from tapeless.errors import TapelessError
from tapeless.files.disk import UnwritableError, make_folder
from tapeless.files.growing import Growing


class Events:
    """One event file in `folder`; a resumed run adds a file of its own, and TensorBoard reads them as one."""

    def __init__(self, folder: Path) -> None:
        try:
            from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, types_pb2
            from tensorboard.summary.writer.record_writer import RecordWriter
        except ModuleNotFoundError:
            raise TapelessError(
                "event files need TensorBoard: pip install 'tapeless[tensorboard]', or leave out tensorboard=true."
            ) from None
        self._event, self._summary = event_pb2, summary_pb2
        self._tensor, self._types = tensor_pb2, types_pb2
        self._record_writer = RecordWriter
        self._records: list[bytes] = []  # that are not in the file yet
        try:
            make_folder(folder)
        except OSError as error:
            raise UnwritableError(f"cannot make {folder}: {error.strerror}.") from None
        # The name that TensorBoard looks for, and that sorts after those of earlier sessions.
        self._file = Growing(folder / f"events.out.tfevents.{time.time():017.6f}.{socket.gethostname()}.{os.getpid()}")
        self._add(self._event.Event(wall_time=time.time(), file_version="brain.Event:2"))

    def note(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """What `write` then writes."""
        summary = self._summary.Summary()
        for tag, value in _flat(kind, values):
            if isinstance(value, str):
                metadata = self._summary.SummaryMetadata()
                metadata.plugin_data.plugin_name = "text"
                tensor = self._tensor.TensorProto(dtype=self._types.DT_STRING, string_val=[value.encode()])
                tensor.tensor_shape.dim.add(size=1)
                summary.value.add(tag=tag, metadata=metadata, tensor=tensor)
            else:
                summary.value.add(tag=tag, simple_value=float(value))
        self._add(self._event.Event(wall_time=time.time(), step=step, summary=summary))

    def cut_after(self, step: int) -> None:
        """TensorBoard drops what it knows from the step at which a session starts on."""
        start = self._event.SessionLog(status=self._event.SessionLog.START)
        self._add(self._event.Event(wall_time=time.time(), step=step + 1, session_log=start))
        self.write()

    def _add(self, event: Any) -> None:
        record = BytesIO()
        self._record_writer(record).write(event.SerializeToString())
        self._records.append(record.getvalue())

    def write(self) -> None:
        """All that was noted. Where it does not reach the disk it is kept, and can be tried again."""
        try:
            while self._records:
                self._file.add(self._records[0])
                self._records.pop(0)
        except OSError as error:
            raise UnwritableError(f"cannot write {self._file.path}: {error.strerror}.") from None


def _flat(prefix: str, values: Mapping[str, Any]) -> Iterator[tuple[str, str | Real]]:
    """`{"phases": {"data": 0.1}}` → `step/phases/data`; what is neither number nor text has no place here."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(f"{prefix}/{name}", value)
        elif isinstance(value, str | Real):
            yield f"{prefix}/{name}", value
