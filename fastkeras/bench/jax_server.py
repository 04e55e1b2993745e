"""The other process: Keras on JAX, told by lines of JSON what to run.

Run as a file by an interpreter that has Keras and JAX and need not have
TensorFlow or fastkeras. Reads one request a line, writes one answer a line.
"""

import json
import pathlib
import sys
import types


def _stand_in(name, path):
    """A package whose modules can be imported without its own front."""
    package = types.ModuleType(name)
    package.__path__ = [str(path)]
    sys.modules[name] = package


class Server:
    """Holds the sides that have been asked for and runs them.

    Args:
        makers: Dict of kind to a function of a row and options to a side.
        rows: Dict of name to `Row`.
    """

    def __init__(self, makers, rows):
        self._makers = makers
        self._rows = rows
        self._sides = {}

    def answer(self, request):
        """Does what is asked; returns the answer as a dict.

        Args:
            request: Dict with `do`: `"make"`, `"clear"`, or a method of a
                side.
        """
        if request["do"] == "clear":
            self._sides.clear()
            return {}
        key = request["side"]
        if request["do"] == "make":
            row = self._rows[request["row"]]
            row = row.quick() if request["quick"] else row
            make = self._makers[request["kind"]]
            self._sides[key] = make(row, request["options"])
            return {}
        side = self._sides[key]
        if request["do"] == "warm":
            side.warm(0.0)
            return {}
        seconds = {"first": side.first, "turn": side.turn}[request["do"]]()
        return {"seconds": seconds, "loss": side.loss}


def serve(lines, write):
    """Answers requests until there are no more.

    Args:
        lines: Iterable of strings of JSON.
        write: Function of a string of JSON.
    """
    import jax
    import keras

    from fastkeras.bench import jax_scan
    from fastkeras.bench import rows
    from fastkeras.bench import sides

    makers = {
        "jax": lambda row, options: sides.Side(row, keras.Model, options),
        "floor": lambda row, options: jax_scan.ScanSide(row),
    }
    server = Server(makers, rows.ROWS)
    hello = {
        "jax": jax.__version__,
        "keras": keras.__version__,
        "device": jax.devices()[0].platform,
    }
    write(json.dumps(hello))
    for line in lines:
        try:
            answer = server.answer(json.loads(line))
        except Exception as error:
            # Whatever it is, the other process says so and goes on without.
            text = (str(error).splitlines() or [""])[0]
            answer = {"error": f"{type(error).__name__}: {text}"}
        write(json.dumps(answer))


if __name__ == "__main__":
    _ROOT = pathlib.Path(__file__).resolve().parents[1]
    _stand_in("fastkeras", _ROOT)
    _stand_in("fastkeras.bench", _ROOT / "bench")
    _stand_in("fastkeras.measure", _ROOT / "measure")
    # What libraries write must not come between the answers.
    _OUT, sys.stdout = sys.stdout, sys.stderr

    def _write(text):
        _OUT.write(text + "\n")
        _OUT.flush()

    serve(sys.stdin, _write)
