"""What XLA says when it can't compile a step, in words of the model."""

import re

import tensorflow as tf

from fastkeras._lib import private

#: What a tier raises that can't be compiled.
REFUSALS = (tf.errors.OpError, ValueError, TypeError)
_NODE = re.compile(r"{{node ([^}]*)}}")
_CONSTANT = re.compile(r"compile-time constant|static|dynamic shape", re.I)


def xla_refusal(error, model):
    """The operation and the layer that XLA can't compile.

    Args:
        error: The exception of the call in which XLA compiled.
        model: The model.

    Returns:
        String, or None if the exception is not about compiling.
    """
    text = str(error)
    if "compil" not in text and "XLA" not in text:
        return None
    node = _NODE.search(text)
    if node is None:
        return _first_line(text)
    *path, operation = node.group(1).split("/")
    reason = f"operation {operation}"
    names = {layer.name for layer in private.flat_layers(model)}
    # A layer that is called again gets a number behind its name.
    for part in reversed(path):
        name = part if part in names else re.sub(r"_\d+$", "", part)
        if name in names:
            reason += f" of layer {name!r}"
            break
    reason += " can't be compiled by XLA"
    if _CONSTANT.search(text):
        reason += ": its shape must be static"
    return reason


def annotate(error, model):
    """Adds what to do to an exception about compiling."""
    reason = xla_refusal(error, model)
    if reason is not None:
        error.add_note(
            f"{reason}. Leave `jit_compile` (`Execution(jit=)`, `JitToggle`) "
            "out, or set `supports_jit = False` on that layer."
        )


def why(error, model):
    """Why a tier can't be used, in one line."""
    return xla_refusal(error, model) or _first_line(str(error))


def _first_line(text):
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[0] if lines else "no reason given"
