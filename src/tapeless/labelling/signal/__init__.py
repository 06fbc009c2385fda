"""Signals: wavelet features, windows over them, the task of labelling every position, and how well it was done."""

from tapeless.labelling.signal.features import Features
from tapeless.labelling.signal.predict import predict
from tapeless.labelling.signal.scores import PrecisionRecallCurve, Score, Scores, picture
from tapeless.labelling.signal.store import Recording
from tapeless.labelling.signal.task import Labelled, class_weights, hold_out
from tapeless.labelling.signal.wavelet import SCALES, feature_blocks, features
from tapeless.labelling.signal.windows import Windows, blend

__all__ = [
    "SCALES",
    "Features",
    "Labelled",
    "PrecisionRecallCurve",
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
