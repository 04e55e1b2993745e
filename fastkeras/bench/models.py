"""Models and data of the rows: Keras and NumPy only.

Each model is a function of the class to make it with; each kind of data a
function of a NumPy generator and a number of rows.

Example:

>>> import keras
>>> mlp(keras.Model).count_params()
26122
"""

CLASSES = 10


# Data.


def floats(*shape):
    """Normal numbers of a shape, and labels."""

    def arrays(rng, rows):
        x = rng.standard_normal((rows, *shape), dtype="float32")
        return x, _labels(rng, rows)

    return arrays


def tokens(length, words):
    """Sequences of numbers of words, and labels."""

    def arrays(rng, rows):
        x = rng.integers(0, words, (rows, length)).astype("int32")
        return x, _labels(rng, rows)

    return arrays


def _labels(rng, rows):
    return rng.integers(0, CLASSES, rows).astype("int32")


def many_floats(rng, rows):
    """Eight inputs and eight labels."""
    x = [rng.standard_normal((rows, 16), dtype="float32") for _ in range(8)]
    return x, [_labels(rng, rows) for _ in range(8)]


# Models.


def mlp(model_class, rate=0.0, widths=(128, 128)):
    from keras import Input
    from keras import layers

    inputs = x = Input((64,))
    for width in widths:
        x = layers.Dense(width, activation="relu")(x)
        if rate:
            x = layers.Dropout(rate)(x)
    return model_class(inputs, layers.Dense(CLASSES)(x))


def lstm(model_class):
    """An LSTM over the embedding of 60 tokens."""
    from keras import Input
    from keras import layers

    inputs = Input((60,), dtype="int32")
    x = layers.Embedding(1000, 32)(inputs)
    return model_class(inputs, layers.Dense(CLASSES)(layers.LSTM(32)(x)))


def transformer(model_class):
    """Two blocks of attention of width 64 over 64 tokens."""
    from keras import Input
    from keras import layers

    inputs = Input((64,), dtype="int32")
    x = layers.Embedding(1000, 64)(inputs)
    for _ in range(2):
        inner = layers.MultiHeadAttention(4, 16, dropout=0.1)(x, x)
        x = layers.LayerNormalization()(x + layers.Dropout(0.1)(inner))
        inner = layers.Dense(128, activation="relu")(x)
        inner = layers.Dropout(0.1)(layers.Dense(64)(inner))
        x = layers.LayerNormalization()(x + inner)
    x = layers.GlobalAveragePooling1D()(x)
    return model_class(inputs, layers.Dense(CLASSES)(x))


def cnn(model_class):
    """Two convolutions of images of 28x28."""
    from keras import Input
    from keras import layers

    inputs = Input((28, 28, 1))
    x = layers.Conv2D(32, 3, activation="relu")(inputs)
    x = layers.MaxPooling2D()(x)
    x = layers.Conv2D(64, 3, activation="relu")(x)
    x = layers.Flatten()(layers.MaxPooling2D()(x))
    return model_class(inputs, layers.Dense(CLASSES)(x))


def resnet(model_class):
    """Nine residual blocks on images of 32x32."""
    from keras import Input
    from keras import layers

    inputs = Input((32, 32, 3))
    x = layers.Conv2D(16, 3, padding="same")(inputs)
    for block in range(9):
        width = 16 * 2 ** (block // 3)
        strides = 2 if block in (3, 6) else 1
        inner = layers.Conv2D(width, 3, strides, padding="same")(x)
        inner = layers.ReLU()(layers.BatchNormalization()(inner))
        if strides > 1:
            x = layers.Conv2D(width, 1, strides)(x)
        x = x + inner
    x = layers.GlobalAveragePooling2D()(x)
    return model_class(inputs, layers.Dense(CLASSES)(x))


def embedding(model_class):
    """A mean of embeddings of 50,000 words."""
    from keras import Input
    from keras import layers

    inputs = Input((20,), dtype="int32")
    x = layers.Embedding(50_000, 32)(inputs)
    x = layers.GlobalAveragePooling1D()(x)
    return model_class(inputs, layers.Dense(CLASSES)(x))


def wide(model_class):
    """Eight towers into one layer into eight outputs."""
    from keras import Input
    from keras import layers

    inputs = [Input((16,)) for _ in range(8)]
    towers = [layers.Dense(32, activation="relu")(x) for x in inputs]
    x = layers.Dense(128, activation="relu")(layers.Concatenate()(towers))
    return model_class(inputs, [layers.Dense(CLASSES)(x) for _ in range(8)])
