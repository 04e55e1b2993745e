"""A call whose activations are dropped and computed again for the gradient.

`tf.recompute_grad` does that for a function of tensors. A layer is more than
that: it reads variables, advances random seeds, updates moving statistics,
adds losses and passes masks on. All of these are made inputs and outputs here:
the call runs in a `keras.StatelessScope`, so that it reads the same values
when it runs again, and what it assigns and adds is taken over once.
"""

import re

import keras
import tensorflow as tf

from fastkeras._lib import checks
from fastkeras._lib import private_calls
from fastkeras._lib import private_marks

# Operations that do something else when they run a second time.
_UNREPEATABLE = re.compile(
    r"Assign|.*PyFunc|Print|Rng|Random|Multinomial|Truncated|Parameterized"
    r"|Stateful.*Random|Stateful.*Normal|Stateful.*Uniform"
)


class Block:
    """A callable that keeps its inputs alone for the backward pass.

    Args:
        name: String, how messages name it.
        call: Function of tensors and other values to nested tensors; also an
            attribute, to run it as it is.
        layers: List of the layers it calls, which must be built.
        owner: The layer that is given the losses it adds.
    """

    def __init__(self, name, call, layers, owner):
        self._name = name
        self.call = call
        self._layers = layers
        self._owner = owner
        self._variables = None
        self._checked = False

    def __call__(self, *args, **kwargs):
        if not private_calls.is_recording():
            return self.call(*args, **kwargs)
        self._check_built()
        if self._variables is None:
            self._variables = _variables(self._layers)
        call, result = self._first_run(args, kwargs)
        return self._taken_over(result, call.attached(result))

    def _first_run(self, args, kwargs):
        call = _Call(self.call, args, kwargs, self._variables)
        with private_calls.stop_recording():
            if not self._checked:
                self._check_repeatable(call.operations())
                self._checked = True
            result = call.run(call.inputs)
        if not result.undeclared:
            return call, result
        # A variable of no layer of the block, such as the global random seed.
        self._variables += result.undeclared
        return self._first_run(args, kwargs)

    def _taken_over(self, result, floats):
        for variable, value in result.updates:
            variable.assign(value)
        split = len(floats) - result.losses
        for loss in floats[split:]:
            # A functional model overrides this with an error.
            keras.Layer.add_loss(self._owner, loss)
        return result.packed(floats[:split])

    def _check_built(self):
        names = [layer.name for layer in self._layers if not layer.built]
        if names:
            raise ValueError(
                checks.message(
                    "Layers that are recomputed must have their variables "
                    "before the first step",
                    f"layers {names} of {self._name}, which are not built",
                    "Call the model on a batch, or give the layer a `build` "
                    "that makes them.",
                )
            )

    def _check_repeatable(self, operations):
        found = _unrepeatable(operations)
        if found:
            raise ValueError(
                checks.message(
                    "A layer that is recomputed must do the same when it runs "
                    "a second time",
                    f"{self._name}, whose call has the operations {found}",
                    "Leave it out of the recomputed layers; draw random "
                    "numbers by `keras.random` with a `SeedGenerator`, and "
                    "keep state in Keras variables.",
                )
            )


def _variables(layers):
    found = {id(v): v for layer in layers for v in layer.variables}
    return list(found.values())


class _Scope(keras.StatelessScope):
    """Reads the given values, and keeps apart what is read and assigned."""

    def __init__(self, values):
        super().__init__(values, collect_losses=True)
        self.updates = {}
        self.undeclared = {}

    def get_current_value(self, variable):
        value = super().get_current_value(variable)
        if value is None:
            self.undeclared[id(variable)] = variable
        return value

    def add_update(self, update):
        super().add_update(update)
        self.updates[id(update[0])] = update


class _Call:
    """One call: its tensors, and what else it was made with.

    Args:
        call: The callable.
        args, kwargs: Its arguments.
        variables: The Keras variables it is known to read.
    """

    def __init__(self, call, args, kwargs, variables):
        self._call = call
        self._arguments = (args, kwargs)
        self._leaves = tf.nest.flatten(self._arguments, expand_composites=True)
        self._places = [
            k for k, leaf in enumerate(self._leaves) if _is_tensor(leaf)
        ]
        self._masks = [
            private_marks.mask_of(self._leaves[k]) for k in self._places
        ]
        self._variables = list(variables)
        self._state = private_calls.call_state()
        inputs = [self._leaves[k] for k in self._places]
        inputs += [m for m in self._masks if m is not None]
        with private_calls.calling(private_calls.NO_CALL):
            inputs += [v.value for v in self._variables]
        self.inputs = [tf.convert_to_tensor(t) for t in inputs]

    def operations(self):
        """The operations of the call, in a graph made for the purpose."""
        function = tf.function(
            lambda *inputs: self.run(inputs).floats, autograph=False
        )
        specs = [tf.TensorSpec(t.shape, t.dtype) for t in self.inputs]
        return function.get_concrete_function(*specs).graph.get_operations()

    def run(self, inputs):
        """Runs the call on tensors in the order of `inputs`."""
        inputs = iter(inputs)
        leaves = list(self._leaves)
        for k in self._places:
            leaves[k] = next(inputs)
        for k, mask in zip(self._places, self._masks, strict=True):
            if mask is not None:
                private_marks.set_mask(leaves[k], next(inputs))
        args, kwargs = tf.nest.pack_sequence_as(
            self._arguments, leaves, expand_composites=True
        )
        scope = _Scope(zip(self._variables, inputs, strict=True))
        with private_calls.calling(self._state), scope:
            outputs = self._call(*args, **kwargs)
        return _Result(outputs, scope)

    def attached(self, result):
        """The floats of a result, with the gradient that runs the call again.

        Compilers merge two equal computations, and both would be kept in
        memory. So the second one is made to depend on the incoming gradient,
        by all its inputs but the weights: random numbers depend on a seed
        alone.
        """
        with private_calls.stop_recording():
            floats = [tf.identity(t) for t in result.floats]
        private_calls.record_gradient(floats, self.inputs, self._gradient)
        return floats

    def _gradient(self, *upstream):
        upstream = [tf.convert_to_tensor(u) for u in upstream]
        values = self.inputs
        if not tf.executing_eagerly():
            values = [
                value if self._is_weight(k) else _after(value, upstream[0])
                for k, value in enumerate(values)
            ]
        sources = [k for k, _ in enumerate(values) if self._is_source(k)]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            for k in sources:
                tape.watch(values[k])
            result = self.run(values)
        gradients = tape.gradient(
            result.floats, [values[k] for k in sources], upstream
        )
        found = dict(zip(sources, gradients, strict=True))
        self._order(found)
        return [found.get(k) for k, _ in enumerate(values)]

    def _order(self, gradients):
        """Has the gradients that flow on wait for those of the weights.

        The graph may put these off to the end of the step, as it does on one
        core, and the activations of all blocks would be held for them.
        """
        given = {k: g for k, g in gradients.items() if g is not None}
        weights = [g for k, g in given.items() if self._is_weight(k)]
        with tf.control_dependencies(weights):
            for k, gradient in given.items():
                if not self._is_weight(k):
                    gradients[k] = tf.identity(gradient)

    def _is_source(self, k):
        activation = k < len(self._places)
        return _is_float(self.inputs[k]) and (activation or self._is_weight(k))

    def _is_weight(self, k):
        k -= len(self.inputs) - len(self._variables)
        return k >= 0 and self._variables[k].trainable


class _Result:
    """What a call returned, assigned and added.

    Attributes:
        floats: List of the tensors a gradient can reach: outputs, then losses.
        losses: Integer, how many of `floats` are losses.
        updates: List of variable and value.
        undeclared: List of variables that were read and not given.
    """

    def __init__(self, outputs, scope):
        self._outputs = outputs
        self._leaves = tf.nest.flatten(outputs, expand_composites=True)
        self._places = [k for k, v in enumerate(self._leaves) if _is_float(v)]
        self.floats = [self._leaves[k] for k in self._places] + scope.losses
        self.losses = len(scope.losses)
        self.updates = list(scope.updates.values())
        self.undeclared = list(scope.undeclared.values())

    def packed(self, floats):
        """The outputs, with other tensors for the floats among them."""
        leaves = list(self._leaves)
        for k, tensor in zip(self._places, floats, strict=True):
            mask = private_marks.mask_of(leaves[k])
            if mask is not None:
                private_marks.set_mask(tensor, mask)
            leaves[k] = tensor
        return tf.nest.pack_sequence_as(
            self._outputs, leaves, expand_composites=True
        )


def _is_tensor(leaf):
    return tf.is_tensor(leaf) and not isinstance(leaf, keras.Variable)


def _is_float(leaf):
    return _is_tensor(leaf) and leaf.dtype.is_floating


def _after(tensor, other):
    """The same tensor, known only once `other` is.

    No number is both infinite and none, but a compiler does not know.
    """
    if tensor.dtype == tf.string:
        return tensor
    first = tf.reshape(other, [-1])[:1]
    never = tf.reduce_any(tf.math.is_inf(first) & tf.math.is_nan(first))
    if tensor.dtype.is_bool:
        return tensor | never
    return tensor + tf.cast(never, tensor.dtype)


def _unrepeatable(operations):
    """Types of operations that must not run twice, those in functions too."""
    if not operations:
        return []
    library = operations[0].graph.as_graph_def().library
    bodies = {f.signature.name: f.node_def for f in library.function}
    types = {op.type for op in operations}
    types |= {node.op for nodes in bodies.values() for node in nodes}
    return sorted(t for t in types if _UNREPEATABLE.match(t))
