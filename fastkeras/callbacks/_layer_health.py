"""The figures of a layer, from what a probe has added up."""

from typing import NamedTuple


class LayerHealth(NamedTuple):
    """Figures of one layer over the sampled updates of an epoch.

    Attributes:
        gradient_norm: Float, mean L2 norm of its gradient, before clipping.
        gradient_norm_max: Float, the largest.
        update_ratio: Float, mean L2 norm of an update over that of the
            weights.
        update_ratio_max: Float, the largest.
    """

    gradient_norm: float
    gradient_norm_max: float
    update_ratio: float
    update_ratio_max: float


def by_layer(layers, figures):
    """Dict of layer to `LayerHealth`.

    Args:
        layers: List of names.
        figures: Lists of the norms and of the ratios: each a number of
            samples, then sums and the largest by layer.
    """
    norms, ratios = map(_means, figures)
    return {
        layer: LayerHealth(*norm, *ratio)
        for layer, norm, ratio in zip(layers, norms, ratios)
    }


def _means(figures):
    """Pairs of mean and largest, by layer."""
    count, *values = figures
    half = len(values) // 2
    pairs = zip(values[:half], values[half:], strict=True)
    return [(total / count, top) for total, top in pairs] if count else []
