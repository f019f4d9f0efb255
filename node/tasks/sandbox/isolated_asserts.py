"""Run asserts about a program that cannot reach them: both run in sandboxes of their own, connected by a socket.

The program answers calls with plain data (None, bool, numbers, text, bytes, lists, tuples, sets, dicts), which is
rebuilt from JSON on the asserts' side. Its other objects become handles. A handle can be called, can be asked for
attributes, items and length, and can be iterated over. It equals only itself, and has no order or arithmetic. If a call
changes its arguments in place, they change on the asserts' side too. Functions among the arguments are called back.

Invariants:

- Asserts compare only objects of their own process. So the program cannot end the asserts, patch what they use, or
  claim to equal everything.
- Python's own names always mean Python's objects in the asserts.
- If the program ends, the asserts fail.
"""

from __future__ import annotations

import socket

from node.tasks.sandbox.bubblewrap import Ran, SandboxLimits, open_sandbox

LINE = r'''
import builtins as _builtins, fractions as _fractions, decimal as _decimal, json as _json, os as _os, sys as _sys


class _Handle:
    """An object of the other side, by its number."""

    def __init__(self, line, number):
        self.__dict__.update(_line=line, _number=number)

    def _do(self, what, *args):
        return self._line.ask("do", self, what, args)

    def __call__(self, *args, **options):
        return self._line.ask("call", self, args, options)

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self._do("getattr", name)

    def __setattr__(self, name, value):
        self._do("setattr", name, value)

    def __getitem__(self, key):
        return self._do("getitem", key)

    def __setitem__(self, key, value):
        self._do("setitem", key, value)

    def __delitem__(self, key):
        self._do("delitem", key)

    def __contains__(self, value):
        return self._do("contains", value) is True

    def __len__(self):
        return self._do("len")

    def __iter__(self):
        return self._do("iter")

    def __next__(self):
        ended, value = self._line.ask("next", self)
        if ended:
            raise StopIteration
        return value

    def __str__(self):
        return self._do("str")

    def __repr__(self):
        return self._do("repr")

    def __bool__(self):
        return True

    def __instancecheck__(self, value):
        return isinstance(value, _Handle) and self._do("isinstance", value) is True


def _put(value, key, new):
    value[key] = new


def _drop(value, key):
    del value[key]


_DO = {
    "getattr": getattr, "setattr": setattr, "getitem": lambda value, key: value[key], "setitem": _put, "delitem": _drop,
    "contains": lambda value, one: one in value, "len": len, "iter": iter, "str": str, "repr": repr,
    "isinstance": lambda kind, value: isinstance(value, kind),
}  # fmt: skip


_CHANGE = (list, dict, set, bytearray)


class _Line:
    """One end of the socket. Both ends ask, and answer while they wait. `space`: names that the other side may ask for;
    None: the other side may only call what it was given."""

    def __init__(self, number, space):
        self.reads, self.writes = _os.fdopen(number, "rb"), _os.fdopen(_os.dup(number), "wb")
        self.space, self.held, self.handles, self.kinds = space, {}, {}, {}

    def ask(self, *said):
        self._write("ask", said)
        while True:
            what, *rest = self._read()
            if what == "ask":
                self._write(*self._answer(self._decoded(rest[0])))
            elif what == "raised":
                kind, args = rest
                raise self._made(kind, self._decoded(args))
            else:
                value, changed = self._decoded(rest[0])
                self._change(said, changed)
                return value

    def serve(self):
        while True:
            what, said = self._read()
            self._write(*self._answer(self._decoded(said)))

    def _answer(self, said):
        op, *args = said
        try:
            if self.space is None and op != "call":
                raise TypeError("objects of the asserts can only be called")
            value, changed = getattr(self, "_on_" + op)(*args), None
            if op == "call" and any(isinstance(one, _CHANGE) for one in (*args[1], *args[2].values())):
                changed = args[1:]
            return "reply", (value, changed)
        except Exception as error:
            return "raised", error

    def _on_names(self):
        return [name for name in self.space if not name.startswith("__")]

    def _on_get(self, name):
        return self.space[name]

    def _on_call(self, function, args, options):
        return function(*args, **options)

    def _on_do(self, value, what, args):
        return _DO[what](value, *args)

    def _on_next(self, found):
        for value in found:
            return False, value
        return True, None

    @staticmethod
    def _change(said, changed):
        """Change the arguments of a call here like the call changed them on the other side."""
        if said[0] != "call" or changed is None:
            return
        before, after = [*said[2], *said[3].values()], [*changed[0], *changed[1].values()]
        for old, new in zip(before, after):
            if type(old) is type(new) and old != new:
                if isinstance(old, (list, bytearray)):
                    old[:] = new
                elif isinstance(old, (dict, set)):
                    old.clear()
                    old.update(new)

    def _kind(self, told):
        """Return the exception class that the other side means: a built-in one, or a new one derived from that."""
        number, name, base = told
        base = getattr(_builtins, base, Exception)
        if not (isinstance(base, type) and issubclass(base, Exception)):
            base = Exception
        if number is None:
            return base
        if number not in self.kinds:
            self.kinds[number] = type(str(name), (base,), {"_number": number})
        return self.kinds[number]

    def _made(self, told, args):
        """Return an exception of that class, without calling its constructor."""
        kind = self._kind(told)
        made = kind.__new__(kind)
        made.args = tuple(args)
        return made

    def _told_kind(self, kind):
        base = next(one for one in kind.__mro__ if getattr(_builtins, one.__name__, None) is one)
        number = None if base is kind else getattr(kind, "_number", None) or self._hold(kind)
        return [number, kind.__name__, base.__name__]

    def _hold(self, value):
        self.held[id(value)] = value
        return id(value)

    def _encoded(self, value):
        if value is None or isinstance(value, (bool, str)):
            return value
        if type(value).__module__ == "numpy" and getattr(value, "ndim", None) == 0:
            return self._encoded(value.item())
        if isinstance(value, int):
            return int(value)
        if isinstance(value, float):
            return float(value)
        if isinstance(value, (list, tuple, set, frozenset)):
            return [next(k.__name__ for k in (list, tuple, set, frozenset) if isinstance(value, k)),
                    [self._encoded(one) for one in value]]  # fmt: skip
        if isinstance(value, dict):
            return ["dict", [[self._encoded(key), self._encoded(one)] for key, one in value.items()]]
        if isinstance(value, (bytes, bytearray)):
            return ["bytes" if isinstance(value, bytes) else "bytearray", value.hex()]
        if isinstance(value, complex):
            return ["complex", [value.real, value.imag]]
        if isinstance(value, (_fractions.Fraction, _decimal.Decimal)):
            return [type(value).__name__, str(value)]
        if isinstance(value, _Handle):
            return ["yours", value._number]
        if isinstance(value, type) and issubclass(value, Exception):
            return ["kind", self._told_kind(value)]
        return ["held", self._hold(value)]

    def _decoded(self, told):
        if not isinstance(told, list):
            return told
        kind, what = told
        if kind in ("list", "tuple", "set", "frozenset"):
            return getattr(_builtins, kind)([self._decoded(one) for one in what])
        if kind == "dict":
            return {self._decoded(key): self._decoded(one) for key, one in what}
        if kind in ("bytes", "bytearray"):
            return getattr(_builtins, kind).fromhex(what)
        if kind == "complex":
            return complex(*what)
        if kind == "Fraction":
            return _fractions.Fraction(what)
        if kind == "Decimal":
            return _decimal.Decimal(what)
        if kind == "yours":
            return self.held[what]
        if kind == "kind":
            return self.held[what[0]] if what[0] in self.held else self._kind(what)
        if kind == "held":
            return self.handles.setdefault(what, _Handle(self, what))
        raise ValueError(kind)

    def _write(self, what, said):
        if what == "raised":
            kind, args = self._told_kind(type(said)), self._encoded([str(one) for one in said.args])
            told = [what, kind, args]
        else:
            told = [what, self._encoded(list(said))]
        self.writes.write(_json.dumps(told).encode() + b"\n")
        self.writes.flush()

    def _read(self):
        told = self.reads.readline()
        if not told:
            _os._exit(1)  # an exception could be mistaken for one that the asserts expect
        return _json.loads(told)


if hasattr(_sys, "set_int_max_str_digits"):
    _sys.set_int_max_str_digits(0)
'''
"""Both ends of the socket. The code stands alone, for any interpreter."""

SERVE = """
import builtins as _builtins
_builtins.exec(_builtins.compile({line!r}, "line.py", "exec"), {{"_space": _builtins.globals(), "_number": {number}}})
"""
"""Runs after the program, in names of its own, because a program may call its variables `list` or `str`."""

JUDGE = """
class _Space(dict):
    # The asserts' own names, then the current ones of the program.
    def __missing__(self, name):
        if name in _names:
            return _line.ask("get", name)
        raise KeyError(name)


_line = _Line({number}, None)
# Names of Python stay Python's: a program might define its own abs.
_names = set(_line.ask("names")) - set(dir(_builtins))
exec(compile({asserts!r}, "asserts.py", "exec"), _Space(__name__="__main__"))
print({word!r}, flush=True)
_os._exit(0)
"""


def run_asserts(program: str, asserts: str, word: str, *, limits: SandboxLimits, python: str = "") -> Ran:
    """Run `asserts` about `program`, each in a sandbox of its own. Return how the asserts ended, which print `word`
    last.

    Waits and raises like `bubblewrap.run`.
    """
    here, there = socket.socketpair()
    with here, there:
        serve = SERVE.format(line=f"{LINE}\n_Line(_number, _space).serve()\n", number=there.fileno())
        judge = LINE + JUDGE.format(number=here.fileno(), asserts=asserts, word=word)
        with (
            open_sandbox(program, tests=serve, limits=limits, python=python, line=there.fileno()),
            open_sandbox(judge, limits=limits, python=python, line=here.fileno()) as judging,
        ):
            here.close()
            there.close()
            return judging.wait()
