"""Write to the node: events, and one reply or one refusal for each request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import BinaryIO

from protocol.core.pipe import Arrays, Header, encode_frame

from .errors import Refused
from .generate_call import Call, Row
from .token_events import Drawn, token_events


class Replies:
    """Writes to `output`. `calls`: the `generate` requests that have no answer yet, by their id."""

    def __init__(self, output: BinaryIO) -> None:
        self._output = output
        self.calls: dict[int, Call] = {}

    def send(self, header: Header, arrays: Arrays | None = None) -> None:
        self._output.write(encode_frame(header, arrays))
        self._output.flush()

    def answer(self, id: int, header: Header, arrays: Arrays) -> None:
        self.send({**header, "id": id, "ok": True}, arrays)

    def refuse(self, id: int, refusal: Refused) -> None:
        self.send({"id": id, "ok": False, "kind": refusal.kind, "error": str(refusal)})

    def tell(self, drawn: Sequence[Drawn]) -> None:
        """Send the tokens that were drawn, to callers that listen."""
        for event, arrays in token_events(drawn):
            self.send(event, arrays)

    def admit(self, header: Header, arrays: Arrays) -> list[Row]:
        """Return the rows of a `generate` request. Refuse it if no model could generate it; answer it if it has no
        rows."""
        try:
            call = Call.parse(header, arrays)
        except Refused as refusal:
            self.refuse(header["id"], refusal)
            return []
        self.calls[call.id] = call
        if not call.rows:
            self._finish(call)
        return call.rows

    def finish_row(self, row: Row) -> None:
        """Answer the row's call if this was its last unfinished row."""
        row.call.num_left -= 1
        if row.call.num_left == 0 and not row.call.answered:
            self._finish(row.call)

    def interrupt(self) -> None:
        """Make all calls end with the tokens that they have."""
        for call in self.calls.values():
            call.interrupted = True

    def _finish(self, call: Call) -> None:
        self._close(call)
        self.answer(call.id, *call.reply())

    def refuse_call(self, call: Call, refusal: Refused) -> bool:
        """Refuse a call as a whole. Return False, and do nothing, if it was answered before."""
        if call.answered:
            return False
        self._close(call)
        self.refuse(call.id, refusal)
        return True

    def _close(self, call: Call) -> None:
        call.answered = True
        del self.calls[call.id]
