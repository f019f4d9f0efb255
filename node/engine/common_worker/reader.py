"""What arrives from the node, read by a thread of its own, with which the process ends: well, or saying why."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import BinaryIO

from learner.trainer_api.last_resort_exit import die_of
from protocol.core.pipe import Arrays, Header, read_frame


def start_reading(stream: BinaryIO, take: Callable[[Header, Arrays], object], end: Callable[[], None]) -> None:
    """Call `take` with every frame of an unbuffered `stream`, then `end`, in a thread that outlives nothing.

    `end` must end the process: nobody listens any more, and whatever the other threads do is not worth outliving the
    node. An error here ends it, too: nobody would be heard any more.
    """

    def read() -> None:
        try:
            while (frame := read_frame(stream)) is not None:
                take(*frame)
        except BaseException as error:  # whatever ends this thread ends the process, and is told
            die_of(error)
        end()

    threading.Thread(target=read, name="intake", daemon=True).start()
