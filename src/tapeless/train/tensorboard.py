"""Event files that TensorBoard opens: numbers as scalars under KIND/NAME, sentences as text."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from numbers import Real
from pathlib import Path
from typing import Any

from tapeless.errors import TapelessError


class Events:
    """One event file in `folder`; a resumed run adds a file of its own, and TensorBoard reads them as one."""

    def __init__(self, folder: Path) -> None:
        try:
            from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, types_pb2
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ModuleNotFoundError:
            raise TapelessError(
                "event files need TensorBoard: pip install 'tapeless[tensorboard]', or leave out --tensorboard."
            ) from None
        self._event, self._summary = event_pb2, summary_pb2
        self._tensor, self._types = tensor_pb2, types_pb2
        self._writer = EventFileWriter(str(folder))

    def add(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
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
        self._write(self._event.Event(wall_time=time.time(), step=step, summary=summary))

    def cut_after(self, step: int) -> None:
        """TensorBoard drops what it knows from the step at which a session starts on."""
        start = self._event.SessionLog(status=self._event.SessionLog.START)
        self._write(self._event.Event(wall_time=time.time(), step=step + 1, session_log=start))

    def _write(self, event: Any) -> None:
        self._writer.add_event(event)
        self._writer.flush()  # a thread of its own writes: what a kill finds unwritten would be lost

    def close(self) -> None:
        self._writer.close()


def _flat(prefix: str, values: Mapping[str, Any]) -> Iterator[tuple[str, str | Real]]:
    """`{"phases": {"data": 0.1}}` → `step/phases/data`; what is neither number nor text has no place here."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(f"{prefix}/{name}", value)
        elif isinstance(value, str | Real):
            yield f"{prefix}/{name}", value
