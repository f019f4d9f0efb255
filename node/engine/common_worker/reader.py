"""Read what the node sends, in a thread. The process ends with it: normally at the stream's end, else with a reason."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import BinaryIO

from learner.trainer_api.last_resort_exit import die_of
from protocol.core.pipe import Arrays, Header, read_frame


def start_reading(stream: BinaryIO, take: Callable[[Header, Arrays], object], end: Callable[[], None]) -> None:
    """Call `take` with every frame of an unbuffered `stream`, then `end`, in a daemon thread.

    `end` must end the process: the node no longer listens, and no work of the other threads is worth outliving it. An
    error here also ends the process, which could not receive anything any more.
    """

    def read() -> None:
        try:
            while (frame := read_frame(stream)) is not None:
                take(*frame)
        except BaseException as error:  # every error of this thread ends the process, and is reported
            die_of(error)
        end()

    threading.Thread(target=read, name="intake", daemon=True).start()
