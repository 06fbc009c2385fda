"""Signals: wavelet features, windows over them, the task of labelling every position, and how well it was done."""

from tapeless.signal.features import Features
from tapeless.signal.predict import predict
from tapeless.signal.scores import Curve, Score, Scores, picture
from tapeless.signal.store import Recording
from tapeless.signal.task import Labelled, class_weights, hold_out
from tapeless.signal.wavelet import SCALES, feature_blocks, features
from tapeless.signal.windows import Windows, blend

__all__ = [
    "SCALES",
    "Curve",
    "Features",
    "Labelled",
    "Recording",
    "Score",
    "Scores",
    "Windows",
    "blend",
    "class_weights",
    "feature_blocks",
    "features",
    "hold_out",
    "picture",
    "predict",
]
